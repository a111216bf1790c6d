#!/bin/bash
# A Flink session cluster for the data jobs on plain hosts, without Flink's distribution: given the folder with its jars
# and the jar of Beam's job server, start one of
#
#   deploy/flink/start.sh jobmanager                 # on the first host
#   deploy/flink/start.sh taskmanager                # on each host that computes
#   deploy/flink/start.sh workers                    # beside each taskmanager: Python, with this project installed
#   deploy/flink/start.sh job-server                 # where the jobs are started
#
# in the foreground. FLINK_LIB: folder with flink-dist-2.2.*.jar and log4j's (`lib` of Flink's download, or `pyflink/lib`
# of PyPI's apache-flink-libraries); BEAM_JAR: beam-runners-flink-2.2-job-server-*.jar; JOBMANAGER: name of the first
# host; HOST: this host's name, as the others know it; SLOTS: parallel tasks of a taskmanager; PYTHON: the interpreter.
# Settings are in config.yaml beside this file; docs/clusters.md has the commands of the jobs.
set -euo pipefail

fail() { echo "$0: $*" >&2; exit 2; }

here=$(cd "$(dirname "$0")" && pwd)
role=${1:-}
JOBMANAGER=${JOBMANAGER:-localhost}
HOST=${HOST:-$(hostname)}

# A configuration folder of this process: Flink reads it from a directory, and hosts differ in their own name.
configuration=$(mktemp -d)
trap 'rm -r "$configuration"' EXIT
cp "$here/log4j-console.properties" "$configuration"
{
    cat "$here/config.yaml"
    echo "jobmanager.rpc.address: $JOBMANAGER"
    echo "rest.address: $JOBMANAGER"
    case $role in
        jobmanager) echo "jobmanager.bind-host: $HOST"; echo "rest.bind-address: $HOST" ;;
        taskmanager) echo "taskmanager.host: $HOST"; echo "taskmanager.bind-host: $HOST" ;;
    esac
} > "$configuration/config.yaml"

# Java 17 closes packages that Flink and its serializers reach into; Flink's own scripts open the same ones.
opened=(
    java.base/sun.net.util java.base/java.lang java.base/java.net java.base/java.io java.base/java.nio
    java.base/sun.nio.ch java.base/java.lang.reflect java.base/java.text java.base/java.time java.base/java.util
    java.base/java.util.concurrent java.base/java.util.concurrent.atomic java.base/java.util.concurrent.locks
)
java_options=("-Dlog4j.configurationFile=file:$configuration/log4j-console.properties")
for package in "${opened[@]}"; do
    java_options+=("--add-opens=$package=ALL-UNNAMED")
done

# Run in the foreground as a child, so that the trap removes the folder; a signal is passed on.
run() {
    "$@" &
    child=$!
    trap 'kill -TERM "$child" 2> /dev/null || true' TERM INT
    status=0
    wait "$child" || status=$?
    while kill -0 "$child" 2> /dev/null; do
        status=0
        wait "$child" || status=$?
    done
    exit "$status"
}

flink() {
    command -v java > /dev/null || fail "java is not installed; install a JDK 17, such as Debian's openjdk-17-jre-headless"
    compgen -G "${FLINK_LIB:-}/flink-dist-*.jar" > /dev/null ||
        fail "FLINK_LIB=${FLINK_LIB:-} has no flink-dist-*.jar; give the folder lib of Flink 2.2"
    run java "$@"
}

case $role in
    jobmanager)
        flink -Xmx"${JOBMANAGER_HEAP:-1g}" "${java_options[@]}" -classpath "$FLINK_LIB/*" \
            org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint --configDir "$configuration"
        ;;
    taskmanager)
        # Flink's scripts compute these from taskmanager.memory.process.size; here they are given.
        flink -Xmx"${TASKMANAGER_HEAP:-1g}" -XX:MaxDirectMemorySize=512m "${java_options[@]}" -classpath "$FLINK_LIB/*" \
            org.apache.flink.runtime.taskexecutor.TaskManagerRunner --configDir "$configuration" \
            ${SLOTS:+-Dtaskmanager.numberOfTaskSlots="$SLOTS"} -Dtaskmanager.cpu.cores="${SLOTS:-1}.0" \
            -Dtaskmanager.memory.task.heap.size=512m -Dtaskmanager.memory.framework.heap.size=128m \
            -Dtaskmanager.memory.task.off-heap.size=128m -Dtaskmanager.memory.framework.off-heap.size=128m \
            -Dtaskmanager.memory.managed.size=256m \
            -Dtaskmanager.memory.network.min=64m -Dtaskmanager.memory.network.max=64m \
            -Dtaskmanager.memory.jvm-metaspace.size=256m \
            -Dtaskmanager.memory.jvm-overhead.min=192m -Dtaskmanager.memory.jvm-overhead.max=192m
        ;;
    workers)
        run "${PYTHON:-python}" -m apache_beam.runners.worker.worker_pool_main --service_port "${WORKER_PORT:-50000}"
        ;;
    job-server)
        command -v java > /dev/null || fail "java is not installed; install a JDK 17, such as Debian's openjdk-17-jre-headless"
        [ -f "${BEAM_JAR:-}" ] ||
            fail "BEAM_JAR=${BEAM_JAR:-} is no file; give the jar of Beam's job server for Flink 2.2, which is on Maven Central as org.apache.beam:beam-runners-flink-2.2-job-server"
        run java "${java_options[@]}" -jar "$BEAM_JAR" --flink-master "$JOBMANAGER:8081" --job-host "$HOST" \
            --job-port 8099 --artifact-port 8098 --expansion-port 8097 --artifacts-dir "${ARTIFACTS:-/tmp/beam-artifacts}"
        ;;
    *)
        fail "found ${role:-no role}, expected jobmanager, taskmanager, workers or job-server"
        ;;
esac
