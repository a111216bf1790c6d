"""The doctor names what was left behind in a home, and repairs what is safe."""

import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path
from unittest import mock

import dagster as dg
import pytest
from training_processes import empty_job

from bert_pipeline.atomic import locked
from workflows import doctor
from workflows.definitions import defs
from workflows.lib import doctor as findings_of
from workflows.lib.console import failure_sentence
from workflows.lib.processes import PROCESS_TAG, process_mark
from workflows.lib.resources import BertHome

HEX = "0123456789abcdef" * 2


@pytest.fixture
def home(clean_environment: Path, instance: dg.DagsterInstance) -> BertHome:
    return BertHome()


def problems(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """Run the command; return the topics of the problems that it shows."""
    code = doctor.main(list(words))
    lines = capsys.readouterr().out.splitlines()
    topics = [line.split()[1] for line in lines if line.startswith("!")]
    assert code == (1 if topics else 0)
    assert len([line for line in lines if line.startswith(("!", " "))]) >= 11  # the page is whole
    return topics


@pytest.fixture
def healthy(home: BertHome, monkeypatch: pytest.MonkeyPatch) -> BertHome:
    """A home without problems, however full this machine's disk is and whichever versions it has."""
    monkeypatch.setattr(findings_of, "MIN_FREE_BYTES", 0)
    monkeypatch.setattr(findings_of, "ROOT", home.path)
    return home


def test_home_in_order_has_a_page_without_problems(healthy, capsys):
    assert problems(capsys) == []


def test_missing_home_is_named_and_not_created(clean_environment, capsys):
    assert doctor.main([]) == 2
    assert f"{clean_environment}: there is no home" in capsys.readouterr().err
    assert not clean_environment.exists()


def ended_process() -> str:
    """Return the mark of a process that was killed."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    mark = process_mark(process.pid)
    process.kill()
    process.wait()
    return mark


def test_run_without_a_process_is_failed_by_the_repair(healthy, instance, capsys):
    run_id = str(uuid.uuid4())
    tags = {PROCESS_TAG: f"{ended_process()}:{run_id}"}
    instance.create_run_for_job(empty_job, run_id=run_id, tags=tags, status=dg.DagsterRunStatus.STARTED)
    assert problems(capsys) == ["runs"]
    assert instance.get_run_by_id(run_id).status == dg.DagsterRunStatus.STARTED
    assert problems(capsys, "--repair") == []
    assert instance.get_run_by_id(run_id).status == dg.DagsterRunStatus.FAILURE


def test_process_without_its_parent_is_named(healthy, monkeypatch, capsys):
    owner = ended_process().split(":")[1]
    environment = os.environ | {"BERT_OWNER": owner, "BERT_HOME": str(healthy.path)}
    left = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=environment)
    try:
        assert problems(capsys) == ["processes"]
    finally:
        left.kill()
        left.wait()
    assert problems(capsys) == []


def test_drafts_of_killed_writers_are_removed_by_the_repair(healthy, capsys):
    folder = healthy.dump_directory("samplewiki-1")
    draft, moved = folder / f".corpus.partial-{HEX}", folder / f".exam.partial-{HEX}-old"
    for directory in (draft, moved):
        directory.mkdir(parents=True)
        (directory / "part").write_text("a part", encoding="utf-8")
    old, young = (folder / f".{name}.{HEX}.tmp" for name in ("old", "young"))
    old.touch()
    young.touch()
    os.utime(old, (0, 0))
    with locked(draft, directory=True):  # it is being written
        assert problems(capsys, "--repair") == []
        assert draft.is_dir()
    assert (folder / "exam" / "part").is_file()  # killed between two renames: put back
    assert not old.exists()
    assert problems(capsys) == ["files"]
    assert draft.is_dir()
    assert problems(capsys, "--repair") == []
    assert {path.name for path in folder.iterdir()} == {"exam", young.name}


def test_draft_that_is_finished_meanwhile_is_none(healthy, monkeypatch, capsys):
    (healthy.dump_directory("samplewiki-1") / f".corpus.partial-{HEX}").mkdir(parents=True)
    monkeypatch.setattr(findings_of, "is_abandoned", mock.Mock(side_effect=FileNotFoundError))
    assert problems(capsys) == []


def test_age_of_a_draft_is_told_by_the_clock_of_its_disk(healthy):
    young = healthy.path / f".young.{HEX}.tmp"
    young.touch()
    with mock.patch("time.time", return_value=time.time() + 30 * 24 * 3600):  # this machine's clock is ahead
        assert findings_of.abandoned_drafts(healthy) == []


@pytest.mark.parametrize("comment", ["", "    # The pool `training` keeps one training per machine.\n"])
def test_pools_of_an_older_home_are_corrected(healthy, capsys, comment):
    settings = healthy.path / "dagster" / "dagster.yaml"
    older = f"concurrency:\n  runs:\n    max_concurrent_runs: 2\n  pools:\n{comment}    default_limit: 1\nfreshness:\n"
    settings.write_text(older + "  enabled: true\n", encoding="utf-8")
    assert problems(capsys) == ["pools"]
    assert problems(capsys, "--repair") == []
    with dg.DagsterInstance.from_config(str(settings.parent)) as instance:
        assert instance.get_concurrency_config().pool_config.pool_granularity.value == "run"
        assert instance.global_op_concurrency_default_limit == 1


def test_settings_that_the_repair_does_not_know_are_left_alone(healthy, capsys):
    settings = healthy.path / "dagster" / "dagster.yaml"
    settings.write_text("telemetry: {enabled: false}\n", encoding="utf-8")
    assert problems(capsys, "--repair") == ["pools"]
    assert settings.read_text(encoding="utf-8") == "telemetry: {enabled: false}\n"


def test_other_versions_and_a_full_disk_are_named(healthy, monkeypatch, capsys):
    (healthy.path / "constraints.txt").write_text("# tested\ndagster==0.1.0\nnever-installed==1\n", encoding="utf-8")
    monkeypatch.setattr(findings_of, "MIN_FREE_BYTES", 1 << 62)
    assert set(problems(capsys)) == {"versions", "disk"}


def test_last_backup_is_old_or_gone(healthy, capsys, tmp_path, monkeypatch):
    from workflows.defs.upkeep import create_backup

    create_backup(healthy, tmp_path / "backup")
    assert problems(capsys) == []
    monkeypatch.setattr(findings_of, "MAX_BACKUP_DAYS", -1)
    assert problems(capsys) == ["backup"]
    monkeypatch.setattr(findings_of, "MAX_BACKUP_DAYS", 7)
    shutil.rmtree(tmp_path / "backup")
    assert problems(capsys) == ["backup"]


def test_running_ui_is_named_as_holder_of_its_lock(healthy, instance):
    code = "import sys; from pathlib import Path; from bert_pipeline.atomic import locked\n"
    code += "with locked(Path(sys.argv[1])):\n    print('held', flush=True); sys.stdin.read()"
    lock = healthy.path / "locks" / "ui.lock"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as ui:
        assert ui.stdout is not None
        ui.stdout.readline()
        (line,) = [item.text for item in findings_of.examine(healthy, instance) if item.topic == "locks"]
        assert line.startswith(f"ui (held by process {ui.pid} on ")
        ui.kill()


def test_check_and_job_fail_with_the_problems(healthy, instance):
    job = defs().resolve_job_def("doctor")

    def run(**config: bool) -> tuple[list[str], dg.AssetCheckEvaluation]:
        result = job.execute_in_process(
            instance=instance,
            resources={"home": healthy},
            run_config={"ops": {"champion_doctor": {"config": config}}},
            raise_on_error=False,
        )
        failures = [failure_sentence(event) for event in result.all_events if event.is_step_failure]
        assert result.success is (failures == [])
        (evaluation,) = result.get_asset_check_evaluations()
        return failures, evaluation

    failures, evaluation = run()
    assert failures == []
    assert evaluation.passed
    assert "those of constraints.txt" in evaluation.metadata["page"].value
    draft = healthy.dump_directory("samplewiki-1") / f".corpus.partial-{HEX}"
    draft.mkdir(parents=True)
    (alert,), evaluation = run()
    assert not evaluation.passed
    assert alert == evaluation.description  # which the sensor of failed runs sends
    assert str(draft) in alert
    assert "! files" in evaluation.metadata["page"].value
    assert run(repair=True)[0] == []
    assert not draft.exists()
