#!/usr/bin/env bash
# The containers as deploy/ ships them, on one machine: both images, Dagster's services from a dropped dump to a registered
# task model, Flink's from bucket to bucket, and a pre-training in two containers of which one is killed.
#
#   make test-containers                        # with podman, which pulls the base images from their registries
#   STAND_INS="script" make test-containers     # where no registry is reached: a script that makes them, called with "flink"
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD python=${PYTHON:-python}
work=$(mktemp -d /var/tmp/bert-containers-XXXX)
[ -n "${STAND_INS:-}" ] && pull=never || pull=missing
limits=(--ulimit nofile=8000:8000 --ulimit nproc=20000:20000)  # what an ordinary machine allows

say() { echo "[$SECONDS s] $*"; }
fail() { say "FAILED: $*"; exit 1; }
compose() { "$BERT_HOME/compose/bin/podman-compose" --in-pod false -f "$1" "${@:2}" 2>> "$work/compose.log"; }
build() { podman build --quiet --pull=$pull --network=host --format docker "${limits[@]}" --file deploy/Dockerfile "$@" . > /dev/null; }
wait_for() {  # SECONDS COMMAND…
    local end=$((SECONDS + $1)); shift
    until "$@" > /dev/null 2>&1; do
        [ $SECONDS -lt $end ] || { podman logs --tail 5 rank-0 || true; tail -n 5 "$work/compose.log" || true; fail "waited in vain for: $*"; }
        sleep 2
    done
}
cleanup() {
    compose "$work/deploy/compose.yaml" down --volumes || true
    compose "$work/deploy/flink/compose.yaml" down --volumes || true
    podman rm --force rank-0 rank-1 s3 > /dev/null 2>&1 || true
    podman network rm --force bert-test > /dev/null 2>&1 || true
    rm -rf "$work"
}
trap cleanup EXIT

# Images
[ -z "${STAND_INS:-}" ] || { "$STAND_INS" flink > "$work/stand-ins.log" 2>&1 || { tail -n 5 "$work/stand-ins.log"; exit 1; }; say "base images made"; }
build --tag bert-workflow
build --target beam-worker --tag bert-beam-worker
size=$(podman image inspect --format '{{.Size}}' bert-beam-worker)
say "images built; workers of Beam: $((size / 1000000)) MB"
[ "$size" -lt 1500000000 ] || fail "the image of Beam's workers has $size bytes, expected less than 1.5 GB"
[ -d "$BERT_HOME/compose" ] || { "$python" -m venv "$BERT_HOME/compose" && "$BERT_HOME/compose/bin/pip" install --quiet podman-compose==1.5.0; }

# What deploy/ ships, but for a key that podman 4.3 does not know
cp -r deploy "$work/deploy"
sed -i '/start_interval:/d' "$work/deploy/compose.yaml"
sed -i "s#context: \.\.\$#context: $root#; s#context: \.\./\.\.\$#context: $root#" "$work/deploy/compose.yaml" "$work/deploy/flink/compose.yaml"

# Two ranks by the command of pretrain.yaml, smaller, on a volume; one is killed, both resume
pretraining() {
    mkdir -m 777 "$work/shared"
    podman network create bert-test > /dev/null
    run() { podman run --network bert-test --volume "$work/shared:/shared" --env BERT_HOME=/tmp/home --env OMP_NUM_THREADS=1 "$@"; }
    run --rm bert-workflow bash -c 'cd /shared && bert sample --output sample --num-articles 100 --seed 1 && bert corpus sample/*articles* --output corpus -- --workers=1 &&
        bert vocab corpus --output vocabulary --vocab-size 600 --pad-with-unused -- --workers=1 &&
        bert instances corpus --vocab vocabulary --output instances --max-seq-length 64 -- --workers=1' > "$work/data.log" 2>&1 || { tail "$work/data.log"; fail "data"; }
    mapfile -t words < <("$python" - << 'P'
import yaml
job = list(yaml.safe_load_all(open("deploy/kubernetes/pretrain.yaml")))[1]
for word in job["spec"]["template"]["spec"]["containers"][0]["command"]:
    if word.startswith("phases."):
        continue
    word = {"--nproc-per-node=8": "--nproc-per-node=1", "--config=paper-large": "--config=demo"}.get(word, word)
    print(word.replace("bert-pretrain-0.bert-pretrain", "rank-0"))
P
    )
    words+=(--device=cpu --experiment= 'phases=[{max_seq_length: 64, steps: 1000, warmup_steps: 100, global_batch_size: 16, instances: /shared/instances}]'
        timeout_seconds=60 checkpoint_interval_steps=20)
    start() {
        for rank in 0 1; do
            podman rm --force "rank-$rank" > /dev/null 2>&1 || true
            run --detach --name "rank-$rank" --env GLOO_SOCKET_IFNAME=eth0 bert-workflow "${words[@]//'$(JOB_COMPLETION_INDEX)'/$rank}" > /dev/null
        done
    }
    start
    wait_for 300 bash -c "compgen -G '$work/shared/training/checkpoints/step-*'"
    podman kill rank-1 > /dev/null
    wait_for 200 bash -c '[ "$(podman inspect --format "{{.State.Running}}" rank-0)" = false ]'
    [ ! -e "$work/shared/training/model/manifest.json" ] || fail "the training ended before a rank was killed"
    start
    wait_for 400 test -e "$work/shared/training/model/manifest.json"
    grep -q '"resume"' "$work/shared/training/metrics.jsonl" || fail "the ranks did not resume"
    say "pre-training in two containers: one killed, both resumed"
}

# From bucket to bucket on Flink; moto is the S3 server that the containers reach
flink() {
    local file=$work/deploy/flink/compose.yaml
    [ -d "$BERT_HOME/moto" ] || "$python" -m pip install --quiet --target "$BERT_HOME/moto" 'moto[server]>=5'
    podman run --detach --name s3 --network host --volume "$BERT_HOME/moto:/moto:ro" --env PYTHONPATH=/moto --entrypoint python bert-beam-worker \
        -m moto.server -H 0.0.0.0 -p 5005 > /dev/null
    local address; address=$(hostname -I | cut -d' ' -f1)
    export AWS_ACCESS_KEY_ID=test AWS_SECRET_ACCESS_KEY=test AWS_ENDPOINT_URL_S3=http://$address:5005
    for service in jobmanager job-server taskmanager-1 taskmanager-2 workers-1 workers-2; do compose "$file" up --no-build --detach $service > /dev/null; done
    wait_for 120 bash -c "curl -s http://127.0.0.1:8081/overview | grep -q '\"taskmanagers\":2'"
    wait_for 60 bash -c 'exec 3<> /dev/tcp/127.0.0.1/8099'
    client() { podman run --rm --network host --env AWS_ACCESS_KEY_ID --env AWS_SECRET_ACCESS_KEY --env AWS_ENDPOINT_URL_S3 --volume "$work/shared:/shared" --entrypoint bash bert-beam-worker -c "$1"; }
    client 'python -c "import fsspec, glob; s3 = fsspec.filesystem(\"s3\"); s3.mkdir(\"bert\"); s3.put(glob.glob(\"/shared/sample/*articles*\")[0], \"bert/wiki.xml.bz2\")" &&
        cp /shared/sample/*articles* /tmp/wiki.xml.bz2 && bert corpus /tmp/wiki.xml.bz2 --output /tmp/here -- --workers=1 &&
        bert corpus s3://bert/wiki.xml.bz2 --output s3://bert/corpus -- --runner=PortableRunner --job_endpoint=localhost:8099 \
            --environment_type=EXTERNAL --environment_config=localhost:50000 --parallelism=2 &&
        python -c "from bert_pipeline.manifest import load_manifest as m; a, b = m(\"/tmp/here\").sha256, m(\"s3://bert/corpus\").sha256; print(a, b); assert a == b"' \
        > "$work/flink.log" 2>&1 || { tail -n 20 "$work/flink.log"; fail "Flink"; }
    compose "$file" down > /dev/null
    say "corpus from bucket to bucket on Flink's containers: the hash of this machine"
}

# A dump dropped into the folder, `retrain`, one task, versions in the registry
services() {
    local file=$work/deploy/compose.yaml
    mkdir -p "$work/dumps" "$work/tasks"
    cp "$work"/shared/sample/*articles* "$work/dumps/testwiki-20260101-pages-articles.xml.bz2"
    mkdir "$work/tasks/glue" && cp -r "$work/shared/sample/glue/SST-2" "$work/tasks/glue/"
    "$python" -c 'import sys; sys.path[:0] = ["tests/workflows", "tests"]; import miniature, yaml; print(yaml.safe_dump(miniature.short_preset()))' > "$work/dumps/miniature.yaml"
    chmod -R a+rX "$work/dumps" "$work/tasks"
    for name in POSTGRES_PASSWORD DAGSTER_DB_PASSWORD MLFLOW_DB_PASSWORD; do export $name="$(od -An -N12 -tx1 /dev/urandom | tr -d ' \n')"; done
    export DUMPS_FOLDER=$work/dumps TASKS_FOLDER=$work/tasks BERT_PRESET=/srv/bert/dumps/miniature.yaml
    compose "$file" up --no-build --detach database > /dev/null
    wait_for 120 podman healthcheck run bert_database_1
    compose "$file" up --no-build --detach mlflow > /dev/null
    wait_for 180 podman healthcheck run bert_mlflow_1
    compose "$file" up --no-build --detach code > /dev/null
    wait_for 240 podman healthcheck run bert_code_1
    compose "$file" up --no-build --detach webserver daemon > /dev/null
    for sensor in new_dump_in_folder tasks_after_pretraining; do
        podman exec bert_daemon_1 dagster sensor start $sensor --workspace /etc/dagster/workspace.yaml > /dev/null 2>&1 || fail "sensor $sensor"
    done
    registered() { curl -s "http://127.0.0.1:5000/api/2.0/mlflow/registered-models/search" | "$python" -c 'import json, sys
names = [m["name"] for m in json.load(sys.stdin)["registered_models"]]; print(names); sys.exit(len(names) < 2)'; }
    wait_for 900 registered
    say "compose.yaml from a dropped dump to the registry: $(registered)"
    compose "$file" down > /dev/null
    [ -z "$(podman ps --quiet --filter name=bert_)" ] || fail "containers are left after down"
}

pretraining
flink
services
say "all passed"
