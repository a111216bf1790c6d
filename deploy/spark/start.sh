#!/bin/bash
# A Spark 3 cluster for the data jobs on plain hosts: start one of
#
#   deploy/spark/start.sh master                     # on the first host
#   deploy/spark/start.sh worker                     # on each host that computes: the executors
#   deploy/spark/start.sh workers                    # beside each worker: Python, with this project installed
#   deploy/spark/start.sh job-server                 # where the jobs are started; it is the driver of all jobs
#
# in the foreground. SPARK_HOME: folder with Spark's `jars` (Spark's download, or `pyspark` of PyPI); BEAM_JAR:
# beam-runners-spark-3-job-server-*.jar, or a classpath with Spark's jars, all of which are sent to the executors; MASTER: name of the first host; HOST: this host's name, as the
# others know it; SLOTS: parallel tasks of a worker; PYTHON: the interpreter. Further arguments are Spark's own or the job
# server's; docs/clusters.md has the commands of the jobs.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
. "$here/../java.sh"
role=${1:-}
shift || true
MASTER=${MASTER:-localhost}
HOST=${HOST:-$(hostname)}
export SPARK_HOME

spark() {
    local core
    core=$(compgen -G "${SPARK_HOME:-}/jars/spark-core_*.jar") ||
        fail "SPARK_HOME=${SPARK_HOME:-} has no jars/spark-core_*.jar; give the folder of Spark 3"
    core=${core##*spark-core_}
    export SPARK_SCALA_VERSION=${core%%-*}  # set by Spark's scripts; without it a worker starts no executor
    java_17 -Xmx1g -classpath "$SPARK_HOME/jars/*" "$@"
}

case $role in
    master)
        spark org.apache.spark.deploy.master.Master --host "$HOST" --port 7077 --webui-port 8080 "$@"
        ;;
    worker)
        spark org.apache.spark.deploy.worker.Worker --host "$HOST" --cores "${SLOTS:-2}" --memory "${EXECUTOR_MEMORY:-1g}" \
            --work-dir "${TMPDIR:-/tmp}/spark-work" "spark://$MASTER:7077" "$@"
        ;;
    workers)
        workers
        ;;
    job-server)
        opened+=("-Dspark.driver.host=$HOST" "-Dspark.executor.extraJavaOptions=${opened[*]}" "-Dspark.executor.memory=${EXECUTOR_MEMORY:-1g}")
        job_server org.apache.beam.runners.spark.SparkJobServerDriver "Spark 3" \
            --spark-master-url "spark://$MASTER:7077" "$@"
        ;;
    *)
        fail "found ${role:-no role}, expected master, worker, workers or job-server"
        ;;
esac
