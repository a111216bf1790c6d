"""No secret of the environment is in the output of a run: files, logs, Dagster's and MLflow's databases."""

import base64
import os
from collections.abc import Iterator

import dagster as dg
import miniature
import planted
import pytest
from loopback import Handler, serving
from materialized import materialize

from bert_model.registry.operations import list_models
from bert_model.training.home import tracking_uri
from bert_model.training.mlflow_store import open_client
from workflows.defs import automation
from workflows.lib.instance import open_instance
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
def server() -> Iterator[tuple[str, list[str]]]:
    """A tracking server that refuses all clients; yields its host with port, and the credentials it received."""
    shown: list[str] = []

    class Refusing(Handler):
        def refuse(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kind, _, code = self.headers.get("Authorization", "").partition(" ")
            shown.append(base64.b64decode(code).decode() if kind == "Basic" else kind)
            self.send_response(401)
            self.send_header("Content-Length", "0")
            self.end_headers()

        do_GET = do_POST = do_PATCH = do_PUT = refuse

    with serving(Refusing) as address:
        yield address.removeprefix("http://"), shown


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
    host, shown = server
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://{USER}:{planted.quote(PASSWORD, safe='')}@{host}")
    monkeypatch.setenv("BERT_HOME", str(home.path))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv(automation.WEBHOOK_VARIABLE, "http://127.0.0.1:9/services/planted-webhook")
    with open_instance(home) as instance:
        trained = materialize(instance, miniature.DUMP, ["pretrained_model"], miniature.short_preset())
        assert trained.success  # a server that refuses costs no training
        failed = asking_job.execute_in_process(instance=instance, resources={"home": home}, raise_on_error=False)
        assert not failed.success
        with dg.build_run_status_sensor_context(
            sensor_name="failed_runs",
            dagster_instance=instance,
            dagster_run=failed.dagster_run,
            dagster_event=failed.get_run_failure_event(),
        ) as context:
            message = automation.failure_message(context.for_run_failure())
            automation.failed_runs(context.for_run_failure())
    assert set(shown) == {f"{USER}:{PASSWORD}"}
    assert host in message
    said = capfd.readouterr()
    for word in (USER, PASSWORD, "planted-webhook"):
        assert word not in message + said.out + said.err
    assert planted.leaks(home.path, [USER, PASSWORD, planted.quote(PASSWORD), "planted-webhook"]) == []


def test_mlflow_links_have_no_credentials(clean_environment, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"https://{USER}:p@mlflow.example.org/base")
    home = BertHome()
    assert home.mlflow_address == "https://mlflow.example.org/base"
    assert home.environment()["MLFLOW_TRACKING_URI"] == tracking_uri() == "https://mlflow.example.org/base"
    assert (os.environ["MLFLOW_TRACKING_USERNAME"], os.environ["MLFLOW_TRACKING_PASSWORD"]) == (USER, "p")
    monkeypatch.setenv("BERT_MLFLOW_ADDRESS", "https://people.example.org/mlflow/")
    assert home.mlflow_address == "https://people.example.org/mlflow"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "postgresql+psycopg2://mlflow:p@db/mlflow")
    monkeypatch.delenv("BERT_MLFLOW_ADDRESS")
    assert home.mlflow_address == "http://127.0.0.1:5000"
