#!/bin/bash
# A Flink session cluster for the data jobs on plain hosts, without Flink's distribution: given the folder with its jars
# and the jar of Beam's job server, start one of
#
#   deploy/flink/start.sh jobmanager                 # on the first host
#   deploy/flink/start.sh taskmanager                # on each host that computes
#   deploy/flink/start.sh workers                    # beside the taskmanagers: Python, with this project installed
#   deploy/flink/start.sh job-server                 # where the jobs are started
#
# in the foreground. FLINK_LIB: folder with flink-dist-*.jar and log4j's (`lib` of Flink's download, or `pyflink/lib` of
# PyPI's apache-flink-libraries); BEAM_JAR: beam-runners-flink-*-job-server-*.jar of the same version of Flink, or a
# classpath; JOBMANAGER: name of the first host; HOST: this host's name, as the others know it; SLOTS: parallel tasks of
# a taskmanager; PYTHON: the interpreter. Settings are in config.yaml beside this file, further arguments are Flink's own,
# such as -Dkey=value; docs/clusters.md has the commands of the jobs.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
. "$here/../java.sh"
role=${1:-}
shift || true
JOBMANAGER=${JOBMANAGER:-localhost}
HOST=${HOST:-$(hostname)}
SLOTS=${SLOTS:-$(sed -n 's/^taskmanager.numberOfTaskSlots: *//p' "$here/config.yaml")}

# A configuration folder of this process: Flink reads it from a directory, and hosts differ in their own name.
configuration=$(mktemp -d)
trap 'rm -r "$configuration"' EXIT
cp "$here/log4j-console.properties" "$configuration"
{
    cat "$here/config.yaml"
    echo "jobmanager.rpc.address: $JOBMANAGER"
    echo "rest.address: $JOBMANAGER"
    case $role in
        # The blob server has to answer under the name localhost too, by which the JobManager hands it a job's files.
        jobmanager) echo "jobmanager.bind-host: 0.0.0.0"; echo "rest.bind-address: $HOST" ;;
        taskmanager) echo "taskmanager.host: $HOST"; echo "taskmanager.bind-host: $HOST" ;;
    esac
} > "$configuration/config.yaml"

flink() {
    compgen -G "${FLINK_LIB:-}/flink-dist-*.jar" > /dev/null ||
        fail "FLINK_LIB=${FLINK_LIB:-} has no flink-dist-*.jar; give the folder lib of Flink"
    java_17 "-Dlog4j.configurationFile=file:$configuration/log4j-console.properties" -classpath "$FLINK_LIB/*" "$@" \
        --configDir "$configuration"
}

case $role in
    jobmanager)
        flink -Xmx"${JOBMANAGER_HEAP:-1g}" org.apache.flink.runtime.entrypoint.StandaloneSessionClusterEntrypoint "$@"
        ;;
    taskmanager)
        # Flink's scripts compute these from taskmanager.memory.process.size; here they are given. Each shuffle of a slot
        # asks for hundreds of network buffers of 32 KiB.
        network=$((128 * SLOTS))m
        set -- -Dtaskmanager.numberOfTaskSlots="$SLOTS" -Dtaskmanager.cpu.cores="$SLOTS.0" \
            -Dtaskmanager.memory.network.min="$network" -Dtaskmanager.memory.network.max="$network" \
            -Dtaskmanager.memory.task.heap.size=512m -Dtaskmanager.memory.framework.heap.size=128m \
            -Dtaskmanager.memory.task.off-heap.size=128m -Dtaskmanager.memory.framework.off-heap.size=128m \
            -Dtaskmanager.memory.managed.size=256m -Dtaskmanager.memory.jvm-metaspace.size=256m \
            -Dtaskmanager.memory.jvm-overhead.min=192m -Dtaskmanager.memory.jvm-overhead.max=192m "$@"
        flink -Xmx"${TASKMANAGER_HEAP:-1g}" -XX:MaxDirectMemorySize=$((256 + 128 * SLOTS))m \
            org.apache.flink.runtime.taskexecutor.TaskManagerRunner "$@"
        ;;
    workers)
        workers
        ;;
    job-server)
        job_server org.apache.beam.runners.flink.FlinkJobServerDriver Flink --flink-master "$JOBMANAGER:8081" "$@"
        ;;
    *)
        fail "found ${role:-no role}, expected jobmanager, taskmanager, workers or job-server"
        ;;
esac
