"""No secret of the environment is in the output of a run: files, logs, Dagster's and MLflow's databases."""

import base64
import http.server
import os
import threading
from collections.abc import Iterator
from typing import Any

import dagster as dg
import miniature
import planted
import pytest

from bert_model.presets import preset_from_mapping
from bert_model.registry.operations import list_models
from bert_model.training.metrics_log import tracking_uri
from bert_model.training.mlflow_sync import open_client
from workflows.definitions import defs
from workflows.defs import automation
from workflows.lib.instance import open_instance
from workflows.lib.launchpad import asset_configs
from workflows.lib.metadata import as_dagster_failures
from workflows.lib.resources import BertHome

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]  # the miniature run is in the first test's time

USER, PASSWORD = "planted-in-uri", "planted:pass/word-90ab"


def test_secrets_are_in_no_output_of_a_whole_run(finished_base, finished_home):
    assert planted.SECRETS.items() <= miniature.environment(finished_home.path).items()
    assert planted.leaks(finished_base, list(planted.SECRETS.values())) == []


def test_leak_search_finds_planted_secrets(tmp_path):
    (tmp_path / "log").write_text(f"connecting as {USER}", encoding="utf-8")
    assert planted.leaks(tmp_path, [USER, PASSWORD]) == [f"{tmp_path / 'log'}: {USER}"]


@pytest.fixture
def server() -> Iterator[tuple[int, list[str]]]:
    """A tracking server that refuses all clients; yields its port and the credentials it received."""
    shown: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def refuse(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kind, _, code = self.headers.get("Authorization", "").partition(" ")
            shown.append(base64.b64decode(code).decode() if kind == "Basic" else kind)
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = do_PATCH = do_PUT = refuse

        def log_message(self, format: str, *args: Any) -> None:
            pass

    made = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=made.serve_forever, daemon=True).start()
    yield made.server_address[1], shown
    made.shutdown()
    made.server_close()


@dg.op
def ask_the_registry(home: BertHome) -> None:
    home.apply_environment()
    with as_dagster_failures():
        list_models("bert-tiny")


@dg.op
def ask_mlflow_itself(home: BertHome) -> None:
    open_client(home.tracking_uri).search_experiments()


@dg.job
def asking_job() -> None:
    ask_the_registry()
    ask_mlflow_itself()


def test_tracking_credentials_reach_only_the_server(home, server, monkeypatch, capfd):
    port, shown = server
    for variable in ("DAGSTER_HOME", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_REGISTRY_URI"):
        monkeypatch.setenv(variable, "")  # what is set below is put back at the end
        monkeypatch.delenv(variable)
    address = f"http://{USER}:{planted.quote(PASSWORD, safe='')}@127.0.0.1:{port}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("BERT_HOME", str(home.path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv(automation.WEBHOOK_VARIABLE, "http://127.0.0.1:9/services/planted-webhook")
    mapping = miniature.preset()
    for phase, steps in zip(mapping["pretraining"]["phases"], (20, 5), strict=True):
        phase["steps"] = steps
    config = asset_configs(preset_from_mapping(mapping, name="miniature"))["pretrained_model"]
    with open_instance(home) as instance:
        trained = (
            defs()
            .resolve_implicit_global_asset_job_def()
            .execute_in_process(
                instance=instance,
                partition_key=miniature.DUMP,
                asset_selection=[dg.AssetKey("pretrained_model")],
                run_config={"ops": {"pretrained_model": {"config": config}}},
            )
        )
        assert trained.success  # a server that refuses costs no training
        failed = asking_job.execute_in_process(instance=instance, resources={"home": home}, raise_on_error=False)
        assert not failed.success
        with dg.build_run_status_sensor_context(
            sensor_name=automation.FAILURE_SENSOR,
            dagster_instance=instance,
            dagster_run=failed.dagster_run,
            dagster_event=failed.get_run_failure_event(),
        ) as context:
            message = automation.failure_message(context.for_run_failure())
            automation.failed_runs(context.for_run_failure())
    os.environ.pop("DAGSTER_HOME", None)
    assert set(shown) == {f"{USER}:{PASSWORD}"}
    assert f"127.0.0.1:{port}" in message
    said = capfd.readouterr()
    for word in (USER, PASSWORD, "planted-webhook"):
        assert word not in message + said.out + said.err
    assert planted.leaks(home.path, [USER, PASSWORD, planted.quote(PASSWORD), "planted-webhook"]) == []


def test_mlflow_links_have_no_credentials(clean_environment, monkeypatch):
    for variable in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"https://{USER}:p@mlflow.example.org/base")
    home = BertHome()
    assert home.run_page("12ab") == "https://mlflow.example.org/base/#/runs/12ab"
    assert home.environment()["MLFLOW_TRACKING_URI"] == tracking_uri() == "https://mlflow.example.org/base"
    assert (os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"]) == (USER, "p")
    monkeypatch.setenv("BERT_MLFLOW_ADDRESS", "https://people.example.org/mlflow/")
    assert home.version_page("bert-tiny", 3) == "https://people.example.org/mlflow/#/models/bert-tiny/versions/3"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql+psycopg2://mlflow:p@db/mlflow")
    monkeypatch.delenv("BERT_MLFLOW_ADDRESS")
    assert home.mlflow_address == "http://127.0.0.1:5000"
