"""Schedule, sensors and automation conditions, which are off by default.

The dump site is our own, on loopback; the clock is an argument.
"""

import dataclasses
import datetime
import json
import os
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import dagster as dg
import pytest
from instances_fixture import make_tokenizer
from loopback import Handler, serving
from materialized import call
from small_corpus import make_corpus, make_documents

from bert_pipeline.errors import ConfigurationError, InputError
from bert_pipeline.manifest import load_manifest, publishing
from workflows.definitions import defs
from workflows.defs import automation, data
from workflows.defs.promotion import champion_moves
from workflows.lib.launchpad import asset_configs, launchpad_preset
from workflows.lib.lineage import dump_sources
from workflows.lib.resources import (
    DUMP_ASSETS,
    TASK_NAMES,
    BertHome,
    dump_partitions,
    dump_task_key,
    task_partitions,
)


@pytest.fixture(scope="module")
def definitions() -> dg.Definitions:
    return defs()


@pytest.fixture(scope="module")
def repository(definitions) -> dg.RepositoryDefinition:
    return definitions.get_repository_def()


@pytest.fixture
def home(clean_environment) -> BertHome:
    return BertHome(directory=str(clean_environment))


def status(job: str) -> bytes:
    """Return the dumpstatus.json of a dump whose articles job has this status."""
    file = {"size": 5, "url": "/x", "sha1": "0" * 40}
    files = {"enwiki-20261101-pages-articles-multistream.xml.bz2": file}
    return json.dumps({"jobs": {"articlesmultistreamdump": {"status": job, "files": files}}}).encode()


@pytest.mark.parametrize(
    ("dump", "message"),
    [("samplewiki-7", "samplewiki-7 names a generated sample"), ("enwiki-1", "belongs to this dump already")],
)
def test_sources_that_a_dump_cannot_take_are_refused(clean_environment, dump, message):
    home = BertHome()
    path = place(home.dump("enwiki-1"), "enwiki-pages-articles.xml")
    with pytest.raises(dg.Failure, match=message):
        call(data.dump, dump, home, sources=[f"wikipedia:{path}"])
    assert path.exists()
    assert not home.dump("samplewiki-7").exists()


@pytest.fixture
def site(monkeypatch) -> Iterator[dict[str, bytes]]:
    """Files of a dump site whose newest dump is not finished; tests may change them."""
    files = {"/enwiki/": b'<a href="20261101/">x</a>', "/enwiki/20261101/dumpstatus.json": status("in-progress")}

    class Site(Handler):
        def do_GET(self) -> None:
            data = files.get(self.path)
            self.send_response(200 if data is not None else 404)
            self.end_headers()
            self.wfile.write(data or b"")

    with serving(Site) as address:
        monkeypatch.setenv(data.WIKI_VARIABLE, "enwiki")
        monkeypatch.setenv(data.SITES_VARIABLE, f"{address}/")
        yield files


def place(folder: Path, name: str, *, modified: float = 1000.0) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_bytes(b"<mediawiki></mediawiki>")
    os.utime(path, (modified, modified))
    return path


@pytest.fixture
def schedule(repository, instance, home) -> Callable[..., Any]:
    """Evaluate the schedule on a day."""

    def evaluate(day: int, month: int = 11) -> Any:
        moment = datetime.datetime(2026, month, day, 3, 0, tzinfo=datetime.UTC)
        with dg.build_schedule_context(
            instance=instance, scheduled_execution_time=moment, repository_def=repository, resources={"home": home}
        ) as context:
            return repository.get_schedule_def("monthly_retraining").evaluate_tick(context)

    return evaluate


@pytest.fixture
def sensor(repository, instance, home) -> Callable[[str], Any]:
    """Evaluate a sensor."""

    def evaluate(name: str) -> Any:
        with dg.build_sensor_context(
            instance_ref=instance.get_ref(), resources={"home": home}, repository_def=repository
        ) as context:
            return repository.get_sensor_def(name).evaluate_tick(context)

    return evaluate


@pytest.fixture
def site_sensor(sensor) -> Callable[[], Any]:
    return lambda: sensor("new_dump_on_site")


@pytest.fixture
def folder_sensor(sensor) -> Callable[[], Any]:
    return lambda: sensor("new_dump_in_folder")


def test_monthly_schedule_waits_for_the_dump_and_requests_one_run(schedule, repository, instance, site):
    early = schedule(day=5)
    assert not early.run_requests
    assert "articlesmultistreamdump is in-progress" in early.skip_message
    assert not instance.has_dynamic_partition(str(dump_partitions.name), "enwiki-20261101")
    site["/enwiki/20261101/dumpstatus.json"] = status("done")
    (request,) = schedule(day=9).run_requests
    assert request.partition_key == "enwiki-20261101"
    assert instance.has_dynamic_partition(str(dump_partitions.name), "enwiki-20261101")
    assert dg.validate_run_config(repository.get_job(automation.PRETRAINING_JOB), request.run_config)
    # The daemon was killed after it had added the partition: the month is not lost.
    (repeated,) = schedule(day=10).run_requests
    assert repeated.run_key == request.run_key
    add_run(instance, "enwiki-20261101")
    later = schedule(day=10)
    assert not later.run_requests
    assert "has a run already" in later.skip_message


def test_schedule_finds_the_dump_that_was_finished_after_its_last_tick(schedule, instance, site):
    site["/enwiki/20261101/dumpstatus.json"] = status("done")  # on the thirtieth
    (request,) = schedule(day=5, month=12).run_requests
    assert request.partition_key == "enwiki-20261101"
    add_run(instance, "enwiki-20261101")
    later = schedule(day=6, month=12)
    assert not later.run_requests
    assert "20261201" in later.skip_message
    assert "enwiki-20261101 has a run already" in later.skip_message
    # Last month's dump is not looked for once this month's is trained on.
    instance.delete_dynamic_partition(str(dump_partitions.name), "enwiki-20261101")
    add_run(instance, "enwiki-20261201")
    assert not schedule(day=7, month=12).run_requests


def test_failed_retraining_is_tried_three_times(site_sensor, schedule, instance, site, monkeypatch):
    dump, failure = "enwiki-20261101", dg.DagsterRunStatus.FAILURE
    site["/enwiki/20261101/dumpstatus.json"] = status("done")
    keys = []
    for attempt in range(3):
        (request,) = site_sensor().run_requests
        keys.append(request.run_key)
        run = add_run(instance, dump, dg.DagsterRunStatus.CANCELED if attempt == 1 else failure)
        # Dagster's own repetition after a killed process is part of the attempt.
        run = add_run(instance, dump, failure, root=run)
        end = instance.get_run_record_by_id(run).end_time
        monkeypatch.setattr(automation, "time", SimpleNamespace(time=lambda end=end: end + 6 * 3600 - 1))
        tick = site_sensor()
        assert tick.run_requests == []
        assert f"its run {run} failed" in tick.skip_message
        assert run in schedule(day=9).skip_message
        if attempt < 2:
            assert "is tried again after 6 hours" in tick.skip_message
            monkeypatch.setattr(automation, "time", SimpleNamespace(time=lambda end=end: end + 6 * 3600 + 1))
    assert len(set(keys)) == 3  # a sensor starts one run for a key
    assert "was tried 3 times" in tick.skip_message


@pytest.mark.parametrize(
    ("assets", "known"), [({"dump"}, False), ({"report"}, False), ({"pretrained_model", "candidate_model"}, True)]
)
def test_runs_started_by_hand_count_if_they_train(site_sensor, instance, site, assets, known):
    site["/enwiki/20261101/dumpstatus.json"] = status("done")
    add_run(instance, "enwiki-20261101", job="__ASSET_JOB", assets={dg.AssetKey(asset) for asset in assets})
    requests = site_sensor().run_requests
    assert [request.partition_key for request in requests] == ([] if known else ["enwiki-20261101"])


@pytest.mark.parametrize("cron", ["0 3 5-32 * *", "0 3"])
def test_cron_expression_that_is_none_is_refused(monkeypatch, cron):
    monkeypatch.setenv(automation.CRON_VARIABLE, cron)
    with pytest.raises(ConfigurationError, match=r"^BERT_RETRAIN_CRON: found '0 3.*', expected a cron expression"):
        automation.retraining_cron()


def test_command_ends_with_one_sentence_if_the_cron_expression_is_none(clean_environment):
    command = [sys.executable, "-m", "workflows.run", "--stage", "data"]
    environment = os.environ | {automation.CRON_VARIABLE: "every day"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1] == (
        "workflows.run: BERT_RETRAIN_CRON: found 'every day', expected a cron expression such as '0 3 5-28 * *'"
    )
    assert "Traceback" not in ended.stderr


def test_unreachable_site_skips_the_tick(site_sensor, schedule, site, monkeypatch):
    monkeypatch.setenv(data.SITES_VARIABLE, "http://127.0.0.1:9")
    assert "no site has" in schedule(day=5).skip_message
    assert "no site has" in site_sensor().skip_message


def test_site_without_a_scheme_is_refused_by_name(monkeypatch):
    monkeypatch.setenv(data.SITES_VARIABLE, "https://mirror.example.org, dumps.example.org")
    with pytest.raises(ConfigurationError, match="BERT_DUMP_SITES: found 'dumps.example.org', expected addresses"):
        data.dump_sites()


def test_site_sensor_requests_the_newest_finished_dump_once(site_sensor, instance, site):
    waiting = site_sensor()
    assert waiting.run_requests == []
    assert "is finished" in waiting.skip_message
    site["/enwiki/20261101/dumpstatus.json"] = status("done")
    result = site_sensor()
    (request,) = result.run_requests
    assert request.partition_key == "enwiki-20261101"
    assert request.run_config["ops"]["dump"]["config"]["sources"] == []  # the asset downloads it
    (addition,) = result.dynamic_partitions_requests
    instance.add_dynamic_partitions(addition.partitions_def_name, addition.partition_keys)
    assert site_sensor().run_requests == [request]
    add_run(instance, "enwiki-20261101")
    again = site_sensor()
    assert again.run_requests == []
    assert "has a run already" in again.skip_message


def test_sources_are_observed_on_request(definitions, instance, site, tmp_path, monkeypatch):
    def observed(*names: str) -> dict[str, dg.AssetObservation]:
        job = definitions.resolve_implicit_global_asset_job_def()
        result = job.execute_in_process(instance=instance, asset_selection=[dg.AssetKey(name) for name in names])
        events = [event for event in result.all_events if event.event_type_value == "ASSET_OBSERVATION"]
        return {event.asset_key.to_user_string(): event.event_specific_data.asset_observation for event in events}

    monkeypatch.setenv("BERT_TASKS", str(tmp_path / "tasks"))
    (tmp_path / "tasks" / "glue").mkdir(parents=True)
    (tmp_path / "tasks" / "glue" / "train.tsv").write_text("a text\t1\n", encoding="utf-8")
    site["/enwiki/20261101/dumpstatus.json"] = status("done")
    both = observed("official_files", "published_dumps")
    assert both["published_dumps"].data_version == "enwiki-20261101"
    files = both["official_files"]
    assert {key: files.metadata[key].value for key in ("size/files", "size/bytes")} == {
        "size/files": 1,
        "size/bytes": 9,
    }
    assert observed("official_files")["official_files"].data_version == files.data_version
    (tmp_path / "tasks" / "glue" / "train.tsv").write_text("a text\t0\n", encoding="utf-8")
    again = observed("official_files")
    assert set(again) == {"official_files"}
    assert again["official_files"].data_version != files.data_version


def test_latest_dump_is_looked_for_at_each_materialization(clean_environment, monkeypatch):
    dates, downloaded = ["20261001", "20261001", "20261101"], []

    def download(wiki, date, output, **_):
        downloaded.append(date)
        with publishing(output, kind="dump", configuration={"date": date}, inputs={}) as draft:
            (draft.path / "simplewiki-pages-articles.xml").write_text("<mediawiki/>")
        return load_manifest(output)

    monkeypatch.setattr(data, "download_wikipedia", download)
    monkeypatch.setattr(data, "newest_finished_dump", lambda wiki, **_: dates.pop(0))
    home = BertHome()
    for _ in range(3):
        call(data.dump, "simplewiki-latest", home)
    assert downloaded == ["20261001", "20261101"]

    # Without the site, the one that is there is kept.
    monkeypatch.setattr(data, "newest_finished_dump", mock.Mock(side_effect=InputError("no answer")))
    call(data.dump, "simplewiki-latest", home)
    assert downloaded == ["20261001", "20261101"]
    with pytest.raises(dg.Failure, match="no answer"):
        call(data.dump, "dewiki-latest", home)


def test_files_of_a_dump_are_kept_where_none_are_named(clean_environment, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "download_wikipedia", mock.Mock(side_effect=AssertionError))
    home, file = BertHome(), tmp_path / "part.xml"
    file.write_text("<mediawiki/>")
    for sources in ([str(file)], []):
        call(data.dump, "simplewiki-20261001", home, sources=sources)
        assert dump_sources(home.dump("simplewiki-20261001")) == [f"wikipedia:{file}"]


def test_jobs_of_the_data_log_their_progress(clean_environment, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("bert_pipeline.progress.LINE_INTERVAL_SECONDS", -1.0)
    text, home, one = tmp_path / "text.txt", BertHome(), {"beam_options": ["--workers=1"]}
    text.write_text("".join(f"Text {number} begins here.\nIt ends with this word.\n\n" for number in range(9)))
    call(data.dump, "enwiki-1", home, sources=[f"lines:{text}"])
    call(data.corpus, "enwiki-1", home, **one)
    call(data.vocabulary, "enwiki-1", home, vocab_size=60, num_unused=0, pad_with_unused=True, **one)
    call(data.instances, "enwiki-1", home, max_seq_lengths=[32], **one)
    before, _, after = capsys.readouterr().err.partition("60 tokens")
    assert "- 9 pages, " in before
    assert "- 1 of 1 shards, " in before
    assert "- 1 of 1 shards, " in after


def test_preset_that_continues_from_a_model_takes_its_vocabulary():
    settings = dataclasses.replace(launchpad_preset().pretraining, initial_model="models:/bert-tiny/3")
    configs = asset_configs(dataclasses.replace(launchpad_preset(), pretraining=settings))
    assert configs["vocabulary"]["from_model"] == "models:/bert-tiny/3"


def test_vocabulary_of_a_model_names_no_secret(clean_environment, tmp_path, monkeypatch):
    (tmp_path / "model").mkdir()
    make_tokenizer(60).save(tmp_path / "model")
    monkeypatch.setattr(data, "resolve_model", lambda _: tmp_path / "model")
    home = BertHome()
    call(data.vocabulary, "enwiki-1", home, from_model="https://me:s3cret@example.org/model?sig=ab")
    assert load_manifest(home.vocabulary("enwiki-1")).provenance["from_model"] == "https://example.org/model"


def test_text_that_gives_no_pairs_leaves_no_exam(clean_environment):
    home = BertHome()
    documents = [
        dataclasses.replace(document, sentences=("Too short.",)) if document.split == "held_out" else document
        for document in make_documents(40, held_out=[3])
    ]
    make_corpus(home.corpus("enwiki-1"), [documents])
    home.exam("enwiki-1").mkdir(parents=True)  # of an earlier text
    result = call(data.exam, "enwiki-1", home, enabled=True)
    assert result.metadata["exam/pairs"] == 0
    assert not home.exam("enwiki-1").exists()


def test_folder_sensor_without_new_files_gives_a_reason(folder_sensor):
    result = folder_sensor()
    assert result.run_requests == []
    assert "no new dump" in result.skip_message


def test_folder_sensor_names_failed_retrainings_and_dumps_without_a_date(folder_sensor, instance, home):
    for date in ("20261001", "20261101", "latest"):
        place(home.dumps, f"enwiki-{date}-pages-articles.xml.bz2")
    add_run(instance, "enwiki-20261001", dg.DagsterRunStatus.FAILURE)
    add_run(instance, "enwiki-20261001")
    failed = add_run(instance, "enwiki-20261101", dg.DagsterRunStatus.FAILURE)
    add_run(instance, "enwiki-latest")
    message = folder_sensor().skip_message
    assert f"enwiki-20261101 is tried again after 6 hours: its run {failed} failed" in message
    assert "a newer dump needs its date" in message
    assert "enwiki-20261001" not in message


def test_folder_sensor_requests_partition_and_run_for_a_new_dump(folder_sensor, repository, home):
    files = [place(home.dumps, f"enwiki-20261101-pages-articles{number}.xml.bz2") for number in (1, 2)]
    place(home.dumps, "README.txt")
    result = folder_sensor()
    (request,) = result.run_requests
    assert request.partition_key == "enwiki-20261101"
    assert request.run_config["ops"]["dump"]["config"]["sources"] == [str(file) for file in files]
    (addition,) = result.dynamic_partitions_requests
    assert addition.partition_keys == ["enwiki-20261101"]
    assert dg.validate_run_config(repository.get_job(automation.PRETRAINING_JOB), request.run_config)


def test_sensor_and_schedule_continue_from_the_champion(folder_sensor, schedule, repository, home, site, monkeypatch):
    monkeypatch.setattr(automation, "starting_model", lambda _: "models:/bert-tiny/3")
    site["/enwiki/20261101/dumpstatus.json"] = status("done")
    place(home.dumps, "dewiki-20261101-pages-articles.xml.bz2")
    for tick in (schedule(day=9), folder_sensor()):
        (request,) = tick.run_requests
        assert dg.validate_run_config(repository.get_job(automation.PRETRAINING_JOB), request.run_config)
        ops = request.run_config["ops"]
        assert ops["pretrained_model"]["config"]["initial_model"] == "models:/bert-tiny/3"
        assert ops["vocabulary"]["config"]["from_model"] == "models:/bert-tiny/3"


def test_folder_sensor_adds_no_name_that_an_asset_refuses(folder_sensor, home):
    place(home.dumps, f"{'a' * 95}-20261101-pages-articles.xml.bz2")
    place(home.dumps, "enwiki-20261101-pages-articles.xml.bz2")
    result = folder_sensor()
    assert [request.partition_key for request in result.run_requests] == ["enwiki-20261101"]


@pytest.mark.parametrize("wiki", ["English wiki", "../enwiki", "EnWiki", "enwiki-20261101"])
def test_schedule_adds_no_name_that_an_asset_refuses(schedule, instance, site, monkeypatch, wiki):
    monkeypatch.setenv(data.WIKI_VARIABLE, wiki)
    before = instance.get_dynamic_partitions(str(dump_partitions.name))
    with pytest.raises(dg.DagsterError) as caught:
        schedule(day=9)
    assert f"BERT_WIKI: found '{wiki}'" in f"{caught.value} {caught.value.__cause__}"
    assert instance.get_dynamic_partitions(str(dump_partitions.name)) == before


def test_folder_sensor_waits_for_all_files_of_a_dump(folder_sensor, home, monkeypatch):
    place(home.dumps, "enwiki-20261101-pages-articles1.xml.bz2", modified=1000.0)
    place(home.dumps, "enwiki-20261101-pages-articles2.xml.bz2", modified=1990.0)
    monkeypatch.setattr(automation, "time", SimpleNamespace(time=lambda: 2000.0))
    early = folder_sensor()
    assert early.run_requests == []
    assert "enwiki-20261101 changed within the last" in early.skip_message
    monkeypatch.setattr(automation, "time", SimpleNamespace(time=lambda: 2500.0))  # more parts may follow
    assert "within the last 600" in folder_sensor().skip_message
    monkeypatch.setattr(automation, "time", SimpleNamespace(time=lambda: 2591.0))
    (request,) = folder_sensor().run_requests
    assert len(request.run_config["ops"]["dump"]["config"]["sources"]) == 2


@pytest.mark.parametrize("modified", [1990.0, 2005.0])  # the second by a clock that is ahead
def test_folder_sensor_waits_for_a_file_that_changed_just_now(folder_sensor, home, monkeypatch, modified):
    place(home.dumps, "enwiki-20261101-pages-articles.xml.bz2", modified=modified)
    monkeypatch.setattr(automation, "time", SimpleNamespace(time=lambda: 2000.0))
    assert folder_sensor().run_requests == []
    monkeypatch.setattr(automation, "time", SimpleNamespace(time=lambda: 2036.0))
    assert folder_sensor().run_requests


def test_entries_that_cannot_be_read_do_not_keep_a_dump_from_its_training(folder_sensor, home):
    eight_hours = 8 * 3600
    place(home.dumps, "dewiki-20261101-pages-articles.xml.bz2", modified=time.time() + eight_hours)
    (home.dumps / "enwiki-20261101-pages-articles.xml.bz2").symlink_to(home.dumps / "absent")
    (home.dumps / "frwiki-20261101-pages-articles.xml").mkdir()
    (request,) = folder_sensor().run_requests
    assert request.partition_key == "dewiki-20261101"


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (["articles1.xml-p1p41242.bz2"], "found a single part"),
        (
            ["articles2.xml-p41243p151573.bz2", "articles3.xml-p151574p311329.bz2"],
            "found a part from page 41243, expected one from page 1 before it",
        ),
        (
            ["articles1.xml-p1p9.bz2", "articles1.xml-p10p19.bz2", "articles2.xml-p30p39.bz2"],
            "found a part from page 30, expected one from page 20 before it",
        ),
        (["articles1.xml.bz2", "articles3.xml.bz2"], "part 2 is missing"),
    ],
)
def test_folder_sensor_tells_which_part_is_missing(folder_sensor, home, files, reason):
    for file in files:
        place(home.dumps, f"enwiki-20261101-pages-{file}")
    tick = folder_sensor()
    assert tick.run_requests == []
    assert f"enwiki-20261101 is not complete: {reason}" in tick.skip_message


def test_complete_edition_is_used_where_another_lacks_parts(folder_sensor, home):
    parts = ["multistream2.xml-p1000p2000.bz2", "multistream10.xml-p2001p3000.bz2", "multistream1.xml-p1p999.bz2"]
    paths = [str(place(home.dumps, f"test2wiki-20261101-pages-articles-{part}")) for part in parts]
    place(home.dumps, "test2wiki-20261101-pages-articles1.xml-p1p999.bz2")
    (request,) = folder_sensor().run_requests
    assert request.partition_key == "test2wiki-20261101"
    assert request.run_config["ops"]["dump"]["config"]["sources"] == [paths[2], paths[0], paths[1]]


@pytest.mark.parametrize(
    ("files", "used"),
    [
        (["-pages-articles.xml.bz2", "-pages-articles-multistream.xml.bz2"], 1),
        (["-pages-articles-multistream.xml.bz2", "-pages-articles-multistream-index.txt.bz2"], 1),
        (["-pages-articles.xml.bz2", "-pages-articles1.xml-p1p9.bz2", "-pages-articles2.xml-p10p19.bz2"], 1),
        (["-pages-articles-multistream1.xml-p1p9.bz2", "-pages-articles-multistream2.xml-p10p19.bz2"], 2),
        (["-pages-articles.xml.bz2", "-pages-articles.xml", "-pages-articles (1).xml.bz2"], 1),
    ],
)
def test_editions_of_one_dump_are_read_once(folder_sensor, home, files, used):
    paths = [str(place(home.dumps, f"enwiki-20261101{file}")) for file in files]
    (request,) = folder_sensor().run_requests
    assert request.run_config["ops"]["dump"]["config"]["sources"] == paths[:used]


def add_run(
    instance: dg.DagsterInstance,
    dump: str,
    status: dg.DagsterRunStatus = dg.DagsterRunStatus.SUCCESS,
    *,
    job: str = automation.PRETRAINING_JOB,
    assets: set[dg.AssetKey] | None = None,
    root: str | None = None,
) -> str:
    """Add a partition with a run, as an executed request does; return the run's id."""
    instance.add_dynamic_partitions(str(dump_partitions.name), [dump])
    run = dg.DagsterRun(
        job_name=job,
        run_id=str(uuid.uuid4()),
        tags={"dagster/partition": dump},
        asset_selection=frozenset(assets) if assets else None,
        parent_run_id=root,
        root_run_id=root,
    )
    instance.add_run(run)
    if status is dg.DagsterRunStatus.SUCCESS:
        instance.report_dagster_event(dg.DagsterEvent("PIPELINE_SUCCESS", job), run.run_id)
    elif status is dg.DagsterRunStatus.CANCELED:
        instance.report_run_canceled(run)
    else:
        instance.report_run_failed(run)
    return run.run_id


def test_retraining_is_configured_by_the_preset():
    request = automation.retraining_run("enwiki-20261101", ["a.xml.bz2"])
    expected = asset_configs(launchpad_preset(), sources=["a.xml.bz2"])
    assert set(request.run_config["ops"]) == {name for name in DUMP_ASSETS if name in expected}
    assert request.run_config["ops"]["pretrained_model"]["config"] == expected["pretrained_model"]


def test_unknown_start_of_a_retraining_is_refused_by_name(home, monkeypatch):
    monkeypatch.setenv(automation.START_VARIABLE, "champignon")
    with pytest.raises(ConfigurationError, match="BERT_RETRAIN_FROM: found 'champignon'"):
        automation.starting_model(home)
    monkeypatch.setenv(automation.START_VARIABLE, "scratch")
    assert automation.starting_model(home) == ""


class Ticks:
    """Evaluations of the automation conditions over an instance, a minute apart."""

    def __init__(self, definitions: dg.Definitions, instance: dg.DagsterInstance) -> None:
        self.definitions, self.instance = definitions, instance
        self.cursor: Any = None
        self.moment = datetime.datetime(2026, 11, 21, 12, 0)

    def materialize(self, asset: str, partition: Any) -> None:
        self.instance.report_runless_asset_event(dg.AssetMaterialization(asset, partition=str(partition)))

    def requested(self) -> dict[str, list[str]]:
        """Return the requests of a tick: asset -> partitions."""
        self.moment += datetime.timedelta(minutes=1)
        result = dg.evaluate_automation_conditions(
            self.definitions, self.instance, cursor=self.cursor, evaluation_time=self.moment
        )
        self.cursor = result.cursor
        assets = ("task_data", "finetuned_model", "registered_model", "report", "promotion_decision")
        found = {name: sorted(map(str, result.get_requested_partitions(dg.AssetKey(name)))) for name in assets}
        return {name: keys for name, keys in found.items() if keys}


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning")
def test_new_candidate_triggers_finetunings_report_and_decision(definitions):
    instance = dg.DagsterInstance.ephemeral()
    instance.add_dynamic_partitions(str(dump_partitions.name), ["enwiki-1"])
    instance.add_dynamic_partitions(str(task_partitions.name), list(TASK_NAMES))
    partitions = [dump_task_key("enwiki-1", task) for task in ("rte", "sst2")]
    ticks = Ticks(definitions, instance)
    assert ticks.requested() == {}
    ticks.materialize("dump", "enwiki-1")
    assert set(ticks.requested()) == {"task_data"}
    for partition in partitions:  # the files of the other tasks are absent
        ticks.materialize("task_data", partition)
    assert ticks.requested() == {}
    ticks.materialize("pretrained_model", "enwiki-1")
    assert ticks.requested() == {}  # its blocking checks have the word before it is a candidate
    ticks.materialize("candidate_model", "enwiki-1")
    tasks = [str(partition) for partition in partitions]
    assert ticks.requested() == {"finetuned_model": tasks, "registered_model": tasks}
    for partition in partitions:
        ticks.materialize("finetuned_model", partition)
        ticks.materialize("registered_model", partition)
    assert ticks.requested() == {"report": ["enwiki-1"]}
    ticks.materialize("report", "enwiki-1")
    assert ticks.requested() == {"promotion_decision": ["enwiki-1"]}
    ticks.materialize("promotion_decision", "enwiki-1")
    assert ticks.requested() == {}
    # Changed task files are seen, and no reason to fine-tune every dump again.
    instance.report_runless_asset_event(dg.AssetObservation("official_files", tags={"dagster/data_version": "changed"}))
    assert ticks.requested() == {}
    # A task that appears later is read, and fine-tuned on the pre-trained model that there is.
    instance.add_dynamic_partitions(str(task_partitions.name), ["tickets"])
    added = [str(dump_task_key("enwiki-1", "tickets"))]
    assert ticks.requested() == {"task_data": added, "finetuned_model": added, "registered_model": added}


@pytest.mark.filterwarnings("ignore::dagster.BetaWarning", "ignore::dagster.PreviewWarning")
def test_partitions_without_a_renamed_asset_are_not_requested(definitions):
    instance = dg.DagsterInstance.ephemeral()
    instance.add_dynamic_partitions(str(dump_partitions.name), ["enwiki-1"])
    instance.add_dynamic_partitions(str(task_partitions.name), ["sst2"])
    ticks = Ticks(definitions, instance)
    for asset in ("dump", "pretrained_model", "registered_pretrained_model", "report"):
        ticks.materialize(asset, "enwiki-1")
    for asset in ("task_data", "finetuned_model", "registered_task_model"):
        ticks.materialize(asset, dump_task_key("enwiki-1", "sst2"))
    assert ticks.requested() == {}
    assert ticks.requested() == {}


def test_jobs_have_time_limit_and_retries(repository):
    for name in (automation.PRETRAINING_JOB, automation.FINETUNING_JOB, automation.REPORT_JOB):
        assert int(repository.get_job(name).tags[automation.MAX_RUNTIME_TAG]) > 0
    assert repository.get_job(automation.PRETRAINING_JOB).tags[automation.MAX_RETRIES_TAG] == "2"


def test_champion_whose_version_was_deleted_is_observed(instance, clean_environment, empty_store):
    shutil.copy(empty_store, clean_environment / "mlflow.db")
    cursor = json.dumps({"bert-tiny": 3})
    with dg.build_sensor_context(instance=instance, cursor=cursor, resources={"home": BertHome()}) as context:
        result = champion_moves(context)
    (event,) = result.asset_events
    assert event.metadata["outcome"].value == "bert-tiny has no champion any more"
    assert event.metadata["former_version"].value == 3
    assert result.cursor == "{}"
