#!/bin/bash
# A Flink session cluster or a Spark 3 cluster for the data jobs on plain hosts: start one of
#
#   deploy/engine.sh jobmanager | master                       # Flink | Spark, on the first host
#   deploy/engine.sh taskmanager | worker                      # once for each core, on each host that computes
#   deploy/engine.sh workers                                   # beside these: Python, with this project installed
#   deploy/engine.sh flink-job-server | spark-job-server       # where the jobs are started; Spark's is their driver
#
# in the foreground. HOST: this host's name, as the others know it; MANAGER: name of the first host; FLINK_LIB: folder with
# flink-dist-*.jar and log4j's (`lib` of Flink's download, or `pyflink/lib` of PyPI's apache-flink-libraries); SPARK_HOME:
# folder with Spark's `jars` (Spark's download, or `pyspark` of PyPI); BEAM_JAR: beam-runners-*-job-server-*.jar of the
# engine's version, or a classpath, whose jars Spark sends to its executors; SLOTS: parallel tasks of a taskmanager or
# worker; HEAP: memory of a JVM; PYTHON: the interpreter. Flink's settings are in flink/config.yaml, further arguments are
# those of the program that is started, such as Flink's -Dkey=value; docs/clusters.md has the commands of the jobs.
set -euo pipefail

fail() { echo "$0: $*" >&2; exit 2; }

here=$(cd "$(dirname "$0")" && pwd) role=${1:-}
shift || true
HOST=${HOST:-$(hostname)} MANAGER=${MANAGER:-localhost} SLOTS=${SLOTS:-1} HEAP=${HEAP:-1g}

# Java 17 closes packages that the engines and their serializers reach into; their own scripts open the same ones.
opened=()
for package in java.{lang,lang.invoke,lang.reflect,io,net,nio,text,time,util} java.util.concurrent{,.atomic,.locks} \
    sun.{net.util,nio.ch,nio.cs,security.action,util.calendar}; do
    opened+=("--add-opens=java.base/$package=ALL-UNNAMED")
done

java_17() {
    command -v java > /dev/null || fail "java is not installed; install a JDK 17, such as Debian's openjdk-17-jre-headless"
    exec java "${opened[@]}" "$@"
}

flink() {
    compgen -G "${FLINK_LIB:-}/flink-dist-*.jar" > /dev/null ||
        fail "FLINK_LIB=${FLINK_LIB:-} has no flink-dist-*.jar; give the folder lib of Flink"
    java_17 -Xmx"$HEAP" -XX:MaxDirectMemorySize=$((256 + 128 * SLOTS))m -classpath "$FLINK_LIB/*" \
        -Dlog4j.configurationFile="$here/flink/log4j-console.properties" "$1" \
        --configDir "$here/flink" -Djobmanager.rpc.address="$MANAGER" -Drest.address="$MANAGER" "${@:2}"
}

spark() {
    local core
    core=$(compgen -G "${SPARK_HOME:-}/jars/spark-core_*.jar") ||
        fail "SPARK_HOME=${SPARK_HOME:-} has no jars/spark-core_*.jar; give the folder of Spark 3"
    core=${core##*spark-core_}
    export SPARK_HOME SPARK_SCALA_VERSION=${core%%-*}  # set by Spark's scripts; without it a worker starts no executor
    java_17 -Xmx"$HEAP" -classpath "$SPARK_HOME/jars/*" "$@"
}

job_server() {
    [[ -f ${BEAM_JAR:-} || ${BEAM_JAR:-} == *[:*]* ]] ||
        fail "BEAM_JAR=${BEAM_JAR:-} is no file; give the jar of Beam's job server for $role, or a classpath such as '/opt/beam/*'; it is on Maven Central"
    java_17 -classpath "$BEAM_JAR" "$1" --job-host "$HOST" --job-port 8099 --artifact-port 8098 --expansion-port 8097 \
        --artifacts-dir "${TMPDIR:-/tmp}/beam-artifacts" "${@:2}"
}

case $role in
    jobmanager)
        # The blob server has to answer under the name localhost too, by which the JobManager hands it a job's files.
        flink org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint \
            -Djobmanager.bind-host=0.0.0.0 -Drest.bind-address="$HOST" "$@" ;;
    taskmanager)
        # Flink's scripts compute sizes from taskmanager.memory.process.size; here they are given. Each shuffle of a slot
        # asks for hundreds of network buffers of 32 KiB.
        flink org.apache.flink.runtime.taskexecutor.TaskManagerRunner -Dtaskmanager.{host,bind-host}="$HOST" \
            -Dtaskmanager.numberOfTaskSlots="$SLOTS" -Dtaskmanager.cpu.cores="$SLOTS.0" \
            -Dtaskmanager.memory.network.{min,max}=$((128 * SLOTS))m -Dtaskmanager.memory.task.heap.size=512m \
            -Dtaskmanager.memory.{framework.heap,framework.off-heap,task.off-heap}.size=128m \
            -Dtaskmanager.memory.{managed,jvm-metaspace}.size=256m -Dtaskmanager.memory.jvm-overhead.{min,max}=192m "$@" ;;
    master)
        spark org.apache.spark.deploy.master.Master --host "$HOST" --port 7077 --webui-port 8080 "$@" ;;
    worker)
        spark org.apache.spark.deploy.worker.Worker --host "$HOST" --cores "$SLOTS" --memory "$HEAP" \
            --work-dir "${TMPDIR:-/tmp}/spark-work" "spark://$MANAGER:7077" "$@" ;;
    flink-job-server)
        job_server org.apache.beam.runners.flink.FlinkJobServerDriver --flink-master "$MANAGER:8081" "$@" ;;
    spark-job-server)
        opened+=("-Dspark.driver.host=$HOST" "-Dspark.executor.extraJavaOptions=${opened[*]}" -Dspark.executor.memory="$HEAP")
        job_server org.apache.beam.runners.spark.SparkJobServerDriver --spark-master-url "spark://$MANAGER:7077" "$@" ;;
    workers)
        error=$("${PYTHON:=python}" -c 'import bert_pipeline.beam.pool' 2>&1) ||
            fail "$PYTHON cannot run workers (${error##*Error: }); set PYTHON to an interpreter with this project installed"
        exec "$PYTHON" -m bert_pipeline.beam.pool "$@" ;;
    *)
        fail "found ${role:-no role}, expected jobmanager, taskmanager, flink-job-server, master, worker, spark-job-server or workers" ;;
esac
