"""Exams of checkpoints: fixed pairs, a share of the time, and the choice of the published checkpoint."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from instances_fixture import write_instances
from safetensors.torch import load_file
from small_training import SMALL_MODEL, assert_same_training, configuration, read_events, train

from bert_model.model.bert import BertForPreTraining
from bert_model.model.initialization import new_model
from bert_model.model.weights import load_model
from bert_model.pretraining.config import ModelConfig, PhaseConfig, PretrainingConfig
from bert_model.pretraining.fast_exam import (
    MAX_SHARE,
    FastExam,
    input_of_pairs,
    pairs_for_choosing,
    report_metrics,
    whole_exam,
)
from bert_model.pretraining.run_directory import identity
from bert_model.registry.model_card import README_NAME, write_readme
from bert_model.training.distributed import Group
from bert_model.zero_shot.exam import score_pairs, take_exam
from bert_model.zero_shot.result import EXAM_NAME, exam_result, mean_accuracy
from bert_pipeline.configuration import from_mapping
from bert_pipeline.errors import ConfigurationError, InputError
from bert_pipeline.exam.ngrams import NGRAM_BASELINE_NAME
from bert_pipeline.exam.pairs import PAIRS_NAME, Pair, read_pairs, write_pairs
from bert_pipeline.manifest import load_manifest
from bert_pipeline.vocabulary.tokenizer import Tokenizer

CPU = torch.device("cpu")
CONFIG = PretrainingConfig(phases=(PhaseConfig(),))


@pytest.fixture
def pairs(tmp_path, data):
    """Pairs of two kinds of the words of the data's vocabulary."""
    vocabulary = Tokenizer.from_directory(data["short"]).tokens
    words = [word for word in vocabulary if word.isalnum()][:24]
    both = [(one, two) for one in words for two in words[:4] if one != two]
    lines = [f"{one} {two}\t{two} {one}\t{'ab'[number % 2]}" for number, (one, two) in enumerate(both)]
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def untrained(data):
    """The data's vocabulary, and a model with random weights."""
    tokenizer = Tokenizer.from_directory(data["short"])
    config = ModelConfig(**SMALL_MODEL).resolve(vocab_size=tokenizer.vocab_size)
    return tokenizer, new_model(BertForPreTraining, config, seed=1)


def test_checkpoints_are_examined_on_the_pairs_for_choosing(data, pairs, tmp_path, monkeypatch):
    monkeypatch.setattr("bert_model.pretraining.fast_exam.MAX_SHARE", math.inf)
    train(configuration(data, exam=str(pairs), exam_pairs=5), tmp_path / "training")
    exams = {
        event["step"]: event["metrics"] for event in read_events(tmp_path / "training") if event["event"] == "exam"
    }
    assert list(exams) == [3, 6, 8, 9, 12, 14]  # every checkpoint
    assert set(exams[14]) == {"exam/accuracy", "exam/a", "exam/b"}

    chosen = pairs_for_choosing(pairs, 5)
    assert len(chosen) == 10
    assert {pair.part for pair in chosen} == {"choosing"}
    model, _ = load_model(BertForPreTraining, tmp_path / "training" / "model")
    again = score_pairs(model, Tokenizer.from_directory(data["short"]), chosen)
    assert exams[14]["exam/accuracy"] == pytest.approx(mean_accuracy(again.by_kind()))
    manifest = load_manifest(tmp_path / "training" / "model")
    assert manifest.counts["exam/accuracy"] == exams[14]["exam/accuracy"]
    assert manifest.inputs["exam"] == input_of_pairs(chosen)


def test_exams_do_not_change_the_training(data, pairs, tmp_path):
    train(configuration(data, exam=str(pairs), exam_pairs=5), tmp_path / "examined")
    train(configuration(data), tmp_path / "plain")
    assert_same_training(tmp_path / "examined", tmp_path / "plain")


def test_finished_model_is_examined_on_the_pairs_for_reporting(data, pairs, tmp_path, monkeypatch):
    # A directory as `build_exam` writes it, with an n-gram model that has half of the pairs right.
    exam = tmp_path / "exam"
    exam.mkdir()
    write_pairs(exam / PAIRS_NAME, read_pairs(pairs))
    (exam / NGRAM_BASELINE_NAME).touch()
    monkeypatch.setattr(
        "bert_model.zero_shot.exam.ngram_baseline_scores",
        lambda _, pairs: (np.arange(len(pairs)) % 2, np.full(len(pairs), 0.5)),
    )
    output = tmp_path / "training"
    result = train(configuration(data, exam=str(exam), exam_pairs=5), output)

    reporting = [pair for pair in read_pairs(pairs) if pair.part == "reporting"]
    expected = take_exam(output / "model", reporting, ngram_baseline=exam / NGRAM_BASELINE_NAME)
    assert result.metrics["exam_report/accuracy"] == pytest.approx(expected.mean)
    stored = json.loads((output / "model" / EXAM_NAME).read_text())
    assert stored["part"] == "reporting"
    assert stored["mean"] == result.metrics["exam_report/accuracy"]
    assert stored["ngram_baseline_mean"] == expected.ngram_baseline_mean
    assert sum(kind["score"]["count"] for kind in stored["kinds"].values()) == len(reporting)

    # What a promotion compares exams by, and what it examines the champion on.
    assert read_pairs(output / "model") == reporting
    assert load_manifest(output / "model").inputs["exam_report"] == input_of_pairs(reporting)

    (event,) = [event for event in read_events(output) if event["event"] == "exam_report"]
    assert set(event["metrics"]) == {f"exam_report/{name}" for name in ("accuracy", "a", "b", "ngram_baseline")}
    counts = load_manifest(output / "model").counts
    assert {key: counts[key] for key in event["metrics"]} == event["metrics"]
    write_readme(output / "model")
    card = (output / "model" / README_NAME).read_text()
    assert (
        f"{expected.mean:.1f} of 100, mean over kinds; an n-gram model has {expected.ngram_baseline_mean:.1f}" in card
    )


def test_run_that_ends_between_exam_and_publication_records_the_exam_once(data, pairs, tmp_path, monkeypatch):
    def die(*_):
        raise KeyboardInterrupt

    output, mapping = tmp_path / "training", configuration(data, exam=str(pairs), exam_pairs=5)
    with monkeypatch.context() as patch:
        patch.setattr("bert_model.pretraining.run._publish_model", die)
        with pytest.raises(KeyboardInterrupt):
            train(mapping, output)
    result = train(mapping, output, resume=True)
    (event,) = [event for event in read_events(output) if event["event"] == "exam_report"]
    assert event["metrics"]["exam_report/accuracy"] == result.metrics["exam_report/accuracy"]


def test_ranks_share_the_pairs_of_the_whole_exam(untrained, pairs):
    tokenizer, model = untrained
    alone = whole_exam(pairs, model, tokenizer, Group(rank=0, world_size=1, device=CPU), next_sentence=True)

    sent: list[list[float]] = []

    class OneOfTwo(Group):
        def all_reduce_numbers(self, *numbers):
            sent.append(list(numbers))
            return [sum(column) for column in zip(*sent)]

        def call_on_main(self, function):
            return function()

        on_all_ranks = call_on_main

    whole_exam(pairs, model, tokenizer, OneOfTwo(rank=1, world_size=2, device=CPU), next_sentence=True)
    together = whole_exam(pairs, model, tokenizer, OneOfTwo(rank=0, world_size=2, device=CPU), next_sentence=True)
    assert alone is not None
    assert together == alone
    assert sum(1 for number in sent[0] if number) < len(sent[0]) * 0.6  # rank 1 scored its half


def test_exams_take_a_small_share_of_the_time(untrained, pairs):
    now = [0.0]

    def clock():
        now[0] += 1.0  # an exam reads the clock twice: it takes a second
        return now[0]

    tokenizer, model = untrained
    exam = FastExam(pairs_for_choosing(pairs, 2), tokenizer, CONFIG, clock=clock)
    assert exam.metrics(model, is_last=False)
    assert not exam.metrics(model, is_last=False)
    now[0] += 2 / MAX_SHARE
    assert exam.metrics(model, is_last=False)
    assert not exam.metrics(model, is_last=False)
    assert exam.metrics(model, is_last=True)

    # A stop makes room for no more of them.
    now[0] += 1 / MAX_SHARE
    state = exam.state()
    now[0] = 0.0
    exam = FastExam(exam.pairs, tokenizer, CONFIG, state, clock=clock)
    assert not exam.metrics(model, is_last=False)
    now[0] += 2 / MAX_SHARE
    assert exam.metrics(model, is_last=False)


def test_mean_is_not_replaced_by_a_kind_of_its_name(untrained):
    tokenizer, model = untrained
    # The right text of one kind is the wrong one of the other.
    pairs = [
        Pair(pair_id="1", kind="accuracy", good=("w1 w2",), bad=("w2 w1",)),
        Pair(pair_id="2", kind="ngram_baseline", good=("w2 w1",), bad=("w1 w2",)),
    ]
    scores = score_pairs(model, tokenizer, pairs)
    assert sorted(scores.correct) == [0, 1]
    exam = FastExam(pairs, tokenizer, CONFIG)
    assert exam.metrics(model, is_last=True)["exam/accuracy"] == 50
    assert report_metrics(exam_result(scores, None))["exam_report/accuracy"] == 50


def test_choice_after_the_last_checkpoint_is_said_to_choose_nothing(data, tmp_path, caplog):
    train(configuration(data), tmp_path / "training")
    train(configuration(data, choose="loss"), tmp_path / "training", resume=True, allow_changes=True)
    assert "choose=loss: no checkpoint was compared by it; the last one is published" in caplog.text


@pytest.mark.parametrize(("choose", "first"), [("loss", 3.0), ("loss", math.nan), ("exam", 3.0)])
def test_best_checkpoint_of_the_last_phase_is_published(data, pairs, tmp_path, monkeypatch, choose, first):
    by_step = {3: 0.1, 6: 0.1, 8: 0.1, 9: first, 12: 1.0, 14: 2.0}  # those of the first phase are of shorter instances
    steps = iter(by_step.values())

    def evaluate(*_, **__):
        return {"held_out/mlm_loss": next(steps)}

    def metrics(exam, model, *, is_last):
        return {"exam/accuracy": -next(steps)}

    if choose == "loss":
        monkeypatch.setattr("bert_model.pretraining.trainer.evaluate", evaluate)
    else:
        monkeypatch.setattr(FastExam, "metrics", metrics)
    mapping = configuration(data, choose=choose, exam=str(pairs) if choose == "exam" else "", keep_last=1)
    output = tmp_path / "training"
    assert train(mapping, output).step == 14
    assert [path.name for path in sorted((output / "checkpoints").iterdir())] == ["step-00000012", "step-00000014"]
    published, best = (
        load_file(path / "model.safetensors") for path in (output / "model", output / "checkpoints" / "step-00000012")
    )
    assert all(torch.equal(published[name], best[name]) for name in best)
    counts = load_manifest(output / "model").counts
    assert (counts["steps"], counts["published_step"]) == (14, 12)


@pytest.fixture
def stopped(data, tmp_path, monkeypatch):
    """A training that chooses by its loss and crashed after step 13; its best checkpoint is that of step 9."""
    losses = iter([9.0, 9.0, 9.0, 1.0, 2.0, 3.0])
    monkeypatch.setattr("bert_model.pretraining.trainer.evaluate", lambda *_, **__: {"held_out/mlm_loss": next(losses)})
    mapping, output = configuration(data, choose="loss", keep_last=1), tmp_path / "training"
    train(mapping, output, vanish=13)
    return mapping, output


def test_choice_is_remembered_by_a_resumed_training(stopped):
    mapping, output = stopped
    train(mapping, output, resume=True)
    assert load_manifest(output / "model").counts["published_step"] == 9


def test_damaged_best_checkpoint_is_no_longer_the_best(stopped, caplog):
    mapping, output = stopped
    (output / "checkpoints" / "step-00000009" / "model.safetensors").write_bytes(b"")
    train(mapping, output, resume=True)
    assert load_manifest(output / "model").counts["published_step"] == 14
    assert "the best checkpoint, of step 9, is gone or damaged" in caplog.text


def test_exam_is_named_by_the_pairs_that_were_scored(data, pairs, tmp_path):
    two = [
        Pair(pair_id=f"two-{number}", kind="next_sentence", good=("w1", "w2"), bad=("w2", "w1")) for number in range(20)
    ]
    write_pairs(tmp_path / "both.jsonl", [*read_pairs(pairs), *two])
    exam = str(tmp_path / "both.jsonl")
    train(configuration(data, objective="mlm", exam=exam, exam_pairs=5), tmp_path / "training")
    model = load_manifest(tmp_path / "training" / "model")
    assert {pair.kind for pair in read_pairs(model.path)} == {"a", "b"}
    assert model.inputs["exam_report"] == input_of_pairs(read_pairs(model.path))


def test_choice_by_exam_needs_pairs_and_they_belong_to_the_identity(data, pairs, tmp_path):
    # A preset may leave the pairs to Dagster, which has made some.
    with pytest.raises(ConfigurationError, match="choose: found 'exam' without pairs"):
        train(configuration(data, choose="exam"), tmp_path / "training")
    assert not (tmp_path / "training").exists()
    watched = from_mapping(PretrainingConfig, configuration(data, exam=str(pairs)))
    assert identity(watched, []) == identity(from_mapping(PretrainingConfig, configuration(data)), [])
    described = identity(from_mapping(PretrainingConfig, configuration(data, exam=str(pairs), choose="exam")), [])
    assert described["configuration"]["choose"] == "exam"
    assert described["inputs"]["exam"]["name"].endswith(" pairs")


def test_choice_by_loss_needs_held_out_instances(tmp_path):
    for name, length in (("short", 16), ("long", 32)):
        write_instances(tmp_path / name, max_seq_length=length, shards=(48,), held_out=0)
    mapping = configuration({name: str(tmp_path / name) for name in ("short", "long")}, choose="loss")
    with pytest.raises(ConfigurationError, match="choose: found 'loss', but .*/long has no held-out instances"):
        train(mapping, tmp_path / "training")


def test_exam_without_usable_pairs_is_refused(data, tmp_path):
    table = tmp_path / "one.tsv"
    for number in range(50):  # until the hash of its name makes the pair one for reporting
        table.write_text(f"w{number} w1\tw1 w{number}\tkind{number}\n")
        if read_pairs(table)[0].part == "reporting":
            break
    with pytest.raises(InputError, match="all of its pairs are for reporting"):
        train(configuration(data, exam=str(table)), tmp_path / "training")
    tokenizer = Tokenizer.from_directory(data["short"])
    two = [Pair(pair_id="1", kind="next_sentence", good=("w1", "w2"), bad=("w2", "w1"))]
    with pytest.raises(ConfigurationError, match="pairs of two sentences only"):
        FastExam(two, tokenizer, dataclasses.replace(CONFIG, objective="mlm"))
