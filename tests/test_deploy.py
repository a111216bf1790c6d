"""Slurm and Kubernetes start the same entry point; Slurm queues a job that was stopped again."""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from dagster._config import validate_config
from torch.distributed.run import get_args_parser

from bert_model.presets import load_configuration
from bert_model.pretraining.config import add_arguments
from bert_pipeline.parent import GRACE_SECONDS

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
SCRIPT = DEPLOY / "pretrain.slurm"

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash on this machine")


def program(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


@pytest.fixture
def cluster(tmp_path: Path) -> dict[str, str]:
    """Stand-ins of Slurm's programs that write down how they were called, on a cluster of two nodes."""
    record = f'echo $$ > {tmp_path}/srun.pid; printf "%s\\n" "$@" > {tmp_path}/srun.txt; env > {tmp_path}/env.txt'
    program(tmp_path / "srun", f"{record}; exec $BEHAVIOR")
    program(tmp_path / "scancel", f'echo "$@" > {tmp_path}/scancel.txt; kill -TERM $(cat {tmp_path}/srun.pid)')
    job = 'echo "  JobState=$STATE PreemptTime=$PREEMPTED"'
    answers = f'case "$2" in hostnames) printf "node7\\nnode9\\n";; job) {job};; esac'
    program(tmp_path / "scontrol", f'echo "$@" >> {tmp_path}/scontrol.txt; {answers}')
    job = {"SLURM_JOB_NODELIST": "node[7,9]", "SLURM_JOB_NUM_NODES": "2", "SLURM_JOB_ID": "42"}
    job |= {
        "SLURM_GPUS_ON_NODE": "4",
        "SLURM_CPUS_PER_TASK": "16",
        "BEHAVIOR": "true",
        "PREEMPTED": "None",
        "STATE": "RUNNING",
    }
    return os.environ | job | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}


def start(environment: dict[str, str], *arguments: str) -> subprocess.Popen[str]:
    environment = {name: value for name, value in environment.items() if name != "OMP_NUM_THREADS"}
    return subprocess.Popen(["bash", str(SCRIPT), *arguments], env=environment, stderr=subprocess.PIPE, text=True)


def test_every_node_starts_torchrun_with_the_trainings_entry_point(cluster: dict[str, str], tmp_path: Path) -> None:
    assert start(cluster, "paper-large", "/shared/training", "phases.0.instances=/shared/i").wait(60) == 0
    called = (tmp_path / "srun.txt").read_text().splitlines()
    program = called.index("python")
    assert "--cpus-per-task=16" in called[:program]  # since Slurm 22.05, srun does not inherit it
    assert called[program : program + 3] == ["python", "-m", "torch.distributed.run"]
    options = {"--nnodes=2", "--nproc-per-node=4", "--max-restarts=0", "--rdzv-backend=c10d"}
    assert options | {"--rdzv-endpoint=node7:29500", "--rdzv-id=42"} <= set(called)
    assert "OMP_NUM_THREADS=4" in (tmp_path / "env.txt").read_text().splitlines()
    module = called.index("bert_model.pretraining")
    assert called[module - 1] == "-m"
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parsed = parser.parse_intermixed_args(called[module + 1 :])
    assert (parsed.config, parsed.output, parsed.resume) == ("paper-large", Path("/shared/training"), True)
    assert parsed.assignments == ["phases.0.instances=/shared/i"]


def test_a_failed_training_fails_the_job_and_is_not_queued_again(cluster: dict[str, str], tmp_path: Path) -> None:
    assert start(cluster | {"BEHAVIOR": "false"}, "demo", str(tmp_path / "training")).wait(60) == 1
    assert "requeue" not in (tmp_path / "scontrol.txt").read_text()


def test_a_preempted_job_is_queued_again(cluster: dict[str, str], tmp_path: Path) -> None:
    preempted = cluster | {"BEHAVIOR": "false", "PREEMPTED": "2026-11-23T03:28:55"}
    assert start(preempted, "demo", str(tmp_path / "training")).wait(60) == 0
    assert "requeue 42" in (tmp_path / "scontrol.txt").read_text()


@pytest.mark.parametrize("is_extended", [False, True])  # the model of an earlier run, with fewer steps, is there
@pytest.mark.parametrize(("state", "is_finished"), [("RUNNING", False), ("RUNNING", True), ("COMPLETING", False)])
def test_a_stopped_job_is_queued_again_unless_it_is_canceled_or_has_published_its_model(
    cluster: dict[str, str], tmp_path: Path, state: str, is_finished: bool, is_extended: bool
) -> None:
    output = tmp_path / "training"
    manifest = output / "model" / "manifest.json"
    manifest.parent.mkdir(parents=True)
    if is_extended:
        manifest.write_text("{}")
    end = f"touch {tmp_path}/saved; {f'touch {manifest}; ' if is_finished else ''}exit 1"
    program(tmp_path / "ranks", f"trap '{end}' TERM; touch {tmp_path}/ready; while true; do sleep 0.05; done")
    job = start(cluster | {"BEHAVIOR": f"{tmp_path}/ranks", "STATE": state}, "demo", str(output))
    deadline = time.monotonic() + 120
    while not (tmp_path / "ready").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    job.send_signal(signal.SIGTERM)
    is_requeued = state == "RUNNING" and not is_finished
    assert job.wait(60) == (0 if is_requeued else 1)
    assert (tmp_path / "saved").exists()
    assert (tmp_path / "scancel.txt").read_text() == "--signal=TERM 42.0\n"
    assert ("requeue 42" in (tmp_path / "scontrol.txt").read_text()) is is_requeued


def test_without_arguments_the_usage_is_printed(cluster: dict[str, str]) -> None:
    job = start(cluster)
    _, said = job.communicate(timeout=60)
    assert job.returncode == 2
    assert said.startswith("usage: sbatch")


def test_indexed_job_starts_torchrun_with_the_trainings_entry_point() -> None:
    service, job = yaml.safe_load_all((DEPLOY / "kubernetes" / "pretrain.yaml").read_text())
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    name = job["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    assert pod["subdomain"] == service["metadata"]["name"]
    # Each index is a rank of torchrun's; the first pod is where the ranks meet.
    assert container["command"][:3] == ["python", "-m", "torch.distributed.run"]
    words = [word.replace("$(JOB_COMPLETION_INDEX)", "1") for word in container["command"][3:]]
    launch = get_args_parser().parse_args(words)
    assert spec["completionMode"] == "Indexed"
    assert int(launch.nnodes) == spec["completions"] == spec["parallelism"]
    assert int(launch.nproc_per_node) == container["resources"]["limits"]["nvidia.com/gpu"]
    assert (launch.node_rank, launch.max_restarts, launch.module) == (1, 0, True)
    assert launch.master_addr == f"{name}-0.{pod['subdomain']}"
    assert launch.master_port == container["ports"][0]["containerPort"]
    assert launch.training_script == "bert_model.pretraining"
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    parsed = parser.parse_intermixed_args(launch.training_script_args)
    assert parsed.resume
    assert len(load_configuration(parsed.config, parsed.assignments).phases) == 2
    # The checkpoint of a pod that is asked to stop fits into the time that it gets, and files are on a volume.
    environment = {item["name"]: item["value"] for item in container["env"]}
    assert int(environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < pod["terminationGracePeriodSeconds"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    places = (parsed.output, *(Path(word.partition("=")[2]) for word in parsed.assignments))
    assert all(place.is_relative_to("/shared") for place in places)


def test_launcher_of_kubernetes_replaces_the_one_of_dagsters_settings() -> None:
    own, launcher = (yaml.safe_load((DEPLOY / name / "dagster.yaml").read_text()) for name in (".", "kubernetes"))
    assert launcher.keys() == {"run_launcher"} < own.keys()
    config = launcher["run_launcher"]["config"]
    named = set(re.findall(r"\{env: (\w+)\}", (DEPLOY / "dagster.yaml").read_text()))
    assert named - {word.partition("=")[0] for word in config["env_vars"]} == {"DAGSTER_DB_PASSWORD"}  # a secret
    dagster_k8s = pytest.importorskip("dagster_k8s")
    result = validate_config(dagster_k8s.K8sRunLauncher.config_type(), config)
    assert result.success, result.errors


def start_role(tmp_path: Path, *arguments: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Start a role of an engine with a stand-in of Java, which prints its arguments."""
    program(tmp_path / "java", 'printf "%s\\n" "$@"')
    for jar in ("flink-dist-1.jar", "jars/spark-core_2.12-3.5.9.jar"):
        (tmp_path / jar).parent.mkdir(exist_ok=True)
        (tmp_path / jar).touch()
    places = {"FLINK_LIB": str(tmp_path), "SPARK_HOME": str(tmp_path), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [str(DEPLOY / "engine.sh"), *arguments]
    return subprocess.run(command, env=os.environ | places | settings, capture_output=True, text=True, timeout=300)


def test_jobmanager_answers_under_all_names_of_its_host(tmp_path: Path) -> None:
    told = start_role(tmp_path, "jobmanager", HOST="host-1", MANAGER="host-1").stdout.splitlines()
    assert {"-Djobmanager.bind-host=0.0.0.0", "-Drest.bind-address=host-1"} < set(told)  # it sends files to localhost
    assert (Path(told[told.index("--configDir") + 1]) / "config.yaml").is_file()


def test_network_memory_of_a_taskmanager_follows_its_slots(tmp_path: Path) -> None:
    for slots, expected in (({}, "128m"), ({"SLOTS": "4"}, "512m")):
        told = start_role(tmp_path, "taskmanager", "-Dheartbeat.interval=1", **slots).stdout.splitlines()
        assert f"-Dtaskmanager.memory.network.max={expected}" in told
        assert "-Dheartbeat.interval=1" in told  # arguments are passed on


@pytest.mark.parametrize("engine", ["flink", "spark"])
def test_job_server_takes_a_jar_or_a_classpath(engine: str, tmp_path: Path) -> None:
    result = start_role(tmp_path, f"{engine}-job-server")
    assert result.returncode == 2
    assert "BEAM_JAR= is no file; give the jar of Beam's job server for" in result.stderr
    assert result.stderr.count("\n") == 1
    told = start_role(tmp_path, f"{engine}-job-server", BEAM_JAR="/opt/beam/*:/opt/more/*").stdout.splitlines()
    assert "/opt/beam/*:/opt/more/*" in told
    assert f"org.apache.beam.runners.{engine}.{engine.capitalize()}JobServerDriver" in told


def test_workers_with_an_interpreter_without_this_project_are_one_sentence(tmp_path: Path) -> None:
    program(tmp_path / "bare-python", f'exec {sys.executable} -S "$@"')
    result = start_role(tmp_path, "workers", PYTHON=str(tmp_path / "bare-python"))
    assert result.returncode == 2
    assert "cannot run workers (No module named" in result.stderr
    assert result.stderr.count("\n") == 1


def test_spark_worker_joins_its_master(tmp_path: Path) -> None:
    told = start_role(tmp_path, "worker", MANAGER="host-1", SLOTS="3").stdout.splitlines()
    assert told[told.index("--cores") + 1] == "3"
    assert "spark://host-1:7077" in told


def test_workers_of_compose_serve_our_pool_and_wait_for_their_taskmanager() -> None:
    services = yaml.safe_load((DEPLOY / "flink" / "compose.yaml").read_text())["services"]
    for number in ("1", "2"):
        workers = services[f"workers-{number}"]
        assert workers["entrypoint"] == ["python", "-m", "bert_pipeline.beam.pool"]
        # podman-compose makes services in the order of depends_on, and it is a network that exists which they join.
        assert workers["depends_on"] == [workers["network_mode"].removeprefix("service:")]


def test_image_of_workers_installs_the_extra_of_the_data_half_as_an_ordinary_user() -> None:
    stages = re.split(r"^FROM ", (DEPLOY / "Dockerfile").read_text(), flags=re.MULTILINE)
    (workers,) = [stage for stage in stages if "beam-worker\n" in stage.partition("\n")[0] + "\n"]
    assert 'extras["data"]' in workers
    assert "RUN_PYTHON_SDK_IN_DEFAULT_ENVIRONMENT=1" in workers
    assert workers.index("USER bert") < workers.index("WORKDIR /home/bert")  # where `boot` writes


def test_flink_container_that_starts_again_has_each_setting_once(tmp_path: Path) -> None:
    service = yaml.safe_load((DEPLOY / "flink" / "compose.yaml").read_text())["services"]["taskmanager-1"]
    shell, option, script = service["entrypoint"]
    (tmp_path / "conf").mkdir()
    image = "taskmanager:\n  numberOfTaskSlots: 1\n"
    (tmp_path / "conf" / "config.yaml").write_text(image)
    places = {
        "/opt/flink": tmp_path,
        "/bert/config.yaml": DEPLOY / "flink" / "config.yaml",
        "/docker-entrypoint.sh": "echo",
    }
    for name, place in places.items():
        script = script.replace(name, str(place))
    for _ in range(2):
        command = [shell, option, script.replace("$$", "$"), *service["command"]]
        assert subprocess.run(command, check=True, capture_output=True, text=True).stdout == "taskmanager\n"
        settings = (tmp_path / "conf" / "config.yaml").read_text()
        assert settings == image + (DEPLOY / "flink" / "config.yaml").read_text()


# --- schemas: what `docker compose config` and kubeconform check, for the keys that deploy/ uses ---

SCHEMAS = yaml.safe_load((Path(__file__).parent / "data" / "deployment" / "schemas.yaml").read_text())


def problems(document: dict[str, Any]) -> list[str]:
    """Return what a document of Compose or of Kubernetes has that the schema does not allow, with its place."""
    if "services" in document:
        document = {key: value for key, value in document.items() if not key.startswith("x-")}
    schema = SCHEMAS | {"$ref": f"#/$defs/{document.get('kind', 'Compose')}"}
    return [
        f"{error.json_path}: {error.message}" for error in jsonschema.Draft202012Validator(schema).iter_errors(document)
    ]


def documents(path: Path) -> list[dict[str, Any]]:
    """Read a file; each variable has its default, or a word."""
    filled = re.sub(
        r"\$\{\w+(?::-([^}]*)|:\?[^}]*)?\}", lambda match: match[1] or "word", path.read_text(encoding="utf-8")
    )
    return [document for document in yaml.safe_load_all(filled) if "services" in document or "kind" in document]


SCHEMA_FILES = [
    path for path in sorted(DEPLOY.rglob("*.yaml")) if re.search(r"^(services|kind):", path.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize("path", SCHEMA_FILES, ids=lambda path: path.relative_to(DEPLOY).as_posix())
def test_file_has_the_keys_and_values_of_its_schema(path: Path) -> None:
    assert documents(path)
    assert [problem for document in documents(path) for problem in problems(document)] == []


def test_schemas_are_those_of_four_files() -> None:
    assert [path.relative_to(DEPLOY).as_posix() for path in SCHEMA_FILES] == [
        "compose.yaml",
        "flink/compose.yaml",
        "flink/kubernetes.yaml",
        "kubernetes/pretrain.yaml",
    ]


@pytest.mark.parametrize(
    ("path", "old", "new", "place"),
    [
        ("compose.yaml", "stop_grace_period: 90s", "stop_grace_time: 90s", "$.services.code"),
        ("compose.yaml", "mem_limit: 3g", "mem_limit: 3 GB", "$.services.mlflow.mem_limit"),
        ("compose.yaml", "condition: service_healthy}", "condition: healthy}", "$.services.mlflow.depends_on"),
        ("compose.yaml", "127.0.0.1:${DAGSTER_PORT:-3000}", "${DAGSTER_PORT:-3000}", "$.services.webserver.ports[0]"),
        ("kubernetes/pretrain.yaml", "backoffLimit", "backofLimit", "$.spec"),
        ("kubernetes/pretrain.yaml", 'value: "2"', "value: 2", "$.spec.template.spec.containers[0].env[0].value"),
        ("flink/kubernetes.yaml", "memory: 2g,", "memory: 2Gi,", "$.spec.taskManager.resource.memory"),
    ],
)
def test_wrong_key_or_value_is_found(tmp_path: Path, path: str, old: str, new: str, place: str) -> None:
    text = (DEPLOY / path).read_text(encoding="utf-8")
    assert old in text
    (tmp_path / "file.yaml").write_text(text.replace(old, new, 1), encoding="utf-8")
    found = [problem for document in documents(tmp_path / "file.yaml") for problem in problems(document)]
    assert len(found) == 1
    assert found[0].startswith(f"{place}")


def test_services_get_time_to_end_and_no_capabilities_but_those_of_a_database() -> None:
    (document,) = documents(DEPLOY / "compose.yaml")
    for name, service in document["services"].items():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert ("cap_add" in service) is (name == "database")
        assert ("mem_limit" in service) is (name != "code")
    grace = int(document["services"]["code"]["stop_grace_period"].removesuffix("s"))
    assert grace > GRACE_SECONDS + 20  # of a run, and what `wait_for_left_over` adds
