# Parts of flink/start.sh and spark/start.sh, which read this file.

fail() { echo "$0: $*" >&2; exit 2; }

# Java 17 closes packages that the engines and their serializers reach into; their own scripts open the same ones.
opened=()
for package in java.lang java.lang.invoke java.lang.reflect java.io java.net java.nio java.text java.time java.util \
    java.util.concurrent java.util.concurrent.atomic java.util.concurrent.locks sun.net.util sun.nio.ch sun.nio.cs \
    sun.security.action sun.util.calendar; do
    opened+=("--add-opens=java.base/$package=ALL-UNNAMED")
done

# Run in the foreground as a child, so that the trap of EXIT runs; a signal is passed on.
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

java_17() {
    command -v java > /dev/null || fail "java is not installed; install a JDK 17, such as Debian's openjdk-17-jre-headless"
    run java "${opened[@]}" "$@"
}

# job_server MAIN ENGINE [OPTION…]: Beam's job server from BEAM_JAR, a jar or a classpath
job_server() {
    local main=$1 engine=$2; shift 2
    [[ -f ${BEAM_JAR:-} || ${BEAM_JAR:-} == *[:*]* ]] ||
        fail "BEAM_JAR=${BEAM_JAR:-} is no file; give the jar of Beam's job server for $engine, or a classpath such as '/opt/beam/*'; it is on Maven Central"
    java_17 -classpath "$BEAM_JAR" "$main" --job-host "$HOST" --job-port 8099 --artifact-port 8098 \
        --expansion-port 8097 --artifacts-dir "${ARTIFACTS:-/tmp/beam-artifacts}" "$@"
}

workers() {
    run "${PYTHON:-python}" -c 'import sys
try:
    from bert_pipeline.beam.pool import main
except ImportError as error:
    sys.exit(f"{sys.executable} cannot run workers ({error}); set PYTHON to an interpreter with this project installed")
main()' --port "${WORKER_PORT:-50000}"
}
