"""What is known against a score is one list, with the results and for whoever reads them."""

import dataclasses
import json
import shutil

import pytest
import tiny_tasks

from bert_model.cli import main
from bert_model.finetuning.caveats import describe, known_about, read_caveats
from bert_model.metrics.uncertainty import STATISTICS_NAME, UnitStatistics
from bert_model.registry.model_card import hub_metadata, model_card, stated_license
from bert_model.registry.versions import Version, describe_model
from bert_pipeline.errors import UsageError
from bert_pipeline.manifest import load_manifest
from bert_pipeline.tasks.catalogue import TASKS
from bert_pipeline.tasks.task import TaskData, load_task_data

GOOD = {"mean": 90.0, "sd": 1.0, "values": [89.0, 91.0], "n": 300, "majority": 50.0}


def kinds(data, entry=GOOD, *, official=True, steps=1000, truncated=None):
    training = {"steps": steps, "truncated": truncated or {"train": 0, "dev": 0}, "length": 128}
    known = known_about(data, entry, official=official, **training)
    return {caveat.kind: caveat for caveat in known}


@pytest.fixture
def data():
    return tiny_tasks.task_data("sst2")


def test_nothing_is_known_against_a_sound_score(data):
    assert kinds(data) == {}
    assert describe([]) == "nothing"


def test_training_set_as_dev_set_is_known(tmp_path):
    rows = "".join(f"1\t{n}\t{n}\ta man number {n} spoke\ta man spoke {n}\n" for n in range(12))
    for name in ("train.tsv", "dev.tsv"):
        (tmp_path / name).write_text("Quality\t#1 ID\t#2 ID\t#1 String\t#2 String\n" + rows)
    found = kinds(load_task_data("mrpc", tmp_path), official=False)
    assert found["repeats"].share == 1.0
    assert found["repeats"].text == "100.0% of the examples of dev are in the training set"
    assert set(found) == {"repeats", "not_official"}


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"truncated": {"train": 0, "dev": 6}}, "cut_texts", "6 of 24 texts of dev cut at 128 tokens"),
        ({"steps": 99}, "few_steps", "99 steps"),
        ({"entry": {**GOOD, "sd": 0.0, "values": [90.0]}}, "one_seed", "one seed"),
        ({"entry": {**GOOD, "mean": 52.0}}, "at_chance", "52.0 is not clearly above the trivial baseline, 50.0"),
        ({"entry": {**GOOD, "mean": 30.0}}, "at_chance", "30.0"),
        ({"official": False}, "not_official", "published"),
    ],
)
def test_weakness_of_a_score_is_known(changes, kind, words, data):
    found = kinds(data, **changes)
    assert list(found) == [kind]
    assert words in found[kind].text


def test_own_split_and_unseen_classes_are_known(data):
    own = dataclasses.replace(data, own_split=True)
    assert list(kinds(own)) == ["own_split"]
    ones = [example for example in data.train if example.label == "1"]
    assert kinds(dataclasses.replace(data, train=ones))["unseen_classes"].text.endswith("training example: 0")
    tags = TaskData(task=TASKS["ner"], train=[tiny_tasks.example("ner", 0)], dev={"dev": []})
    dev = [dataclasses.replace(tags.train[0], tags=("B-ORG", "O", "O", "O", "O"))]
    assert "B-ORG" in kinds(dataclasses.replace(tags, dev={"dev": dev}))["unseen_classes"].text


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    root = tmp_path_factory.mktemp("tuned")
    model = tiny_tasks.make_model(root / "tiny")
    tiny_tasks.tune("mrpc", model, root / "out", epochs=[1.0], seeds=[1, 2], max_seq_length=10)
    return root


def test_list_is_in_results_card_and_registered_description(tuned):
    manifest = load_manifest(tuned / "out", verify="sha256")
    results = json.loads((manifest.path / "results.json").read_text())
    known = read_caveats(results["known"])
    assert {"cut_texts", "few_steps", "not_official"} <= {caveat.kind for caveat in known}
    document = describe_model(manifest)
    assert document.tags()["known"].split(", ") == [*dict.fromkeys(map(str, known))] != [*map(str, known)]  # two splits
    assert Version.from_json(document.to_json()).score.known == known
    assert f"Known about this score: {describe(known)}." in (manifest.path / "results.md").read_text()
    card = model_card("bert-tiny-mrpc", manifest, document, curves=False)
    assert f"Known about this score: {describe(known)}." in card


def test_statistics_of_every_seed_give_the_reported_score(tuned):
    manifest = load_manifest(tuned / "out", verify="sha256")
    statistics = UnitStatistics.from_json((manifest.path / STATISTICS_NAME).read_text())
    entry = json.loads((manifest.path / "results.json").read_text())["metrics"]["mrpc/dev/f1"]
    assert list(statistics.seeds) == entry["seeds"] == [1, 2]
    assert statistics.scores()[0].tolist() == pytest.approx(entry["values"], abs=1e-5)
    assert statistics.ids == tuple(example.example_id for example in tiny_tasks.task_data("mrpc").dev["dev"])


def test_card_names_data_set_and_language_of_published_files_only(tuned):
    manifest = load_manifest(tuned / "out")
    header = hub_metadata(manifest, describe_model(manifest))
    assert "datasets" not in header
    assert "language" not in header
    (result,) = header["model-index"][0]["results"]
    assert result["dataset"] == {"name": "MRPC, other examples", "type": "mrpc"}
    assert hub_metadata(manifest, Version(lineage={"dump": "dewiki-20261101"}))["language"] == "de"
    path = manifest.path / "results.json"
    text = path.read_text()
    path.write_text(text.replace('"official": false', '"official": true'))
    header = hub_metadata(manifest, describe_model(manifest))
    path.write_text(text)
    assert (header["language"], header["datasets"]) == ("en", ["nyu-mll/glue"])
    (result,) = header["model-index"][0]["results"]
    assert result["dataset"] == {"name": "MRPC", "type": "nyu-mll/glue", "split": "validation", "config": "mrpc"}


@pytest.mark.parametrize(
    ("task", "start", "words"),
    [
        ("sst2", "tiny", "holds a finished model for mrpc"),
        ("mrpc", "other", "holds a finished model that was fine-tuned from another one"),
        ("sst2", "out", "is the model that the fine-tuning starts from"),
    ],
)
def test_another_model_is_replaced_only_if_asked(task, start, words, tuned):
    if start == "other":
        tiny_tasks.make_model(tuned / "other", hidden_size=64)
    before = load_manifest(tuned / "out").sha256
    with pytest.raises(UsageError, match=words):
        tiny_tasks.tune(task, tuned / start, tuned / "out", epochs=[1.0])
    assert load_manifest(tuned / "out", verify="sha256").sha256 == before


def test_other_model_is_replaced_with_replace_and_an_extended_search_needs_none(tuned, tmp_path):
    for task, replace in (("mrpc", False), ("mrpc", False), ("sst2", True)):
        tiny_tasks.tune(task, tuned / "tiny", tmp_path / "out", epochs=[1.0], replace=replace)
    assert load_manifest(tmp_path / "out").configuration["task"] == "sst2"


def test_license_of_a_replaced_model_is_not_inherited(tuned, tmp_path, capsys, monkeypatch, empty_store):
    monkeypatch.setenv("BERT_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    shutil.copy(empty_store, tmp_path / "home" / "mlflow.db")
    for name in ("train", "dev"):
        rows = "".join(
            f"{n}\tthe film was fine .\ta song .\t{('entailment', 'not_entailment')[n % 2]}\n" for n in range(8)
        )
        (tmp_path / f"{name}.tsv").write_text(f"index\tsentence1\tsentence2\tlabel\n{rows}")
    output = shutil.copytree(tuned / "out", tmp_path / "out")
    (output / "README.md").write_text("---\nlicense: mit\n---\n")
    words = f"finetune rte --data {tmp_path} --model {tuned / 'tiny'} --output {output} --workers 0".split()
    settings = ["max_seq_length=16", "learning_rates=[1e-3]", "batch_sizes=[8]", "epochs=[1]", "seeds=[1]"]
    assert main([*words, *settings]) == 2
    assert "holds a finished model for mrpc; give another output, or --replace" in capsys.readouterr().err
    assert stated_license(output) == "mit"
    assert main([*words, *settings, "--replace"]) == 0
    said = capsys.readouterr().err
    assert "known about this score: 100.0% of the examples of dev are in the training set" in said
    assert "license: unknown" in (output / "README.md").read_text()
    # The license of the same model stays with a search that extends it.
    (output / "README.md").write_text("---\nlicense: mit\n---\n")
    assert main([*words, *settings[:-1], "seeds=[1,2]"]) == 0
    assert stated_license(output) == "mit"
