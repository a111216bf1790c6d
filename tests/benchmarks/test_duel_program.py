"""A duel trains both sides in slices to the end of their budgets and scores both with the same code."""

import collections
import dataclasses
import json
import re
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest
import small_corpus
import torch
import transformers

from benchmarks import duel, run_mlm
from benchmarks.inputs import documents_of
from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig, ModernConfig
from bert_model.model.initialization import new_model
from bert_model.model.weights import load_model, save_model
from bert_pipeline.errors import BertError, UsageError
from bert_pipeline.instances.job import build_instances
from bert_pipeline.instances.pairs import InstancesConfig
from bert_pipeline.manifest import load_manifest
from bert_pipeline.vocabulary.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    return make_inputs(tmp_path_factory.mktemp("duel"), held_out=range(0, 60, 6))


def make_inputs(folder, held_out):
    documents = small_corpus.make_documents(60, held_out=held_out)
    corpus = small_corpus.make_corpus(folder / "corpus", [documents])
    small_corpus.make_vocabulary(folder / "vocabulary")
    for length in (16, 32):
        config = InstancesConfig(max_seq_length=length, dupe_factor=1)
        build_instances(corpus, folder / "vocabulary", folder / f"instances-{length}", config)
    return folder


def arguments(inputs, *more):
    instances = [str(inputs / f"instances-{length}") for length in (16, 32)]
    preset = ["--preset", str(Path(__file__).parents[1] / "data" / "benchmarks" / "duel.yaml")]
    return [*preset, "--corpus", str(inputs / "corpus"), "--instances", *instances, *more]


@pytest.fixture
def texts(inputs):
    """The corpus and its tokenizer."""
    return load_manifest(inputs / "corpus"), Tokenizer.from_directory(inputs / "vocabulary")


def new_weights(directory, tokenizer, spread=0.02, architecture=BertConfig):
    """Save random weights to a new directory; return the model."""
    size = {"vocab_size": tokenizer.vocab_size, "hidden_size": 32}
    shape = architecture.from_preset("tiny", **size, initializer_range=spread, pad_token_id=tokenizer.pad_id)
    model = new_model(BertForPreTraining, shape, seed=1)
    directory.mkdir(parents=True)
    save_model(model, directory, tokenizer)
    return model


def run_mlm_case(**values):
    settings = {"model": "", "output": "", "learning_rate": 0.0, "budget": 100.0, "warmup": 5.0, "decay": 20.0}
    return run_mlm.RunMlmCase(**settings | {"save_steps": 1000} | values)


@pytest.mark.slow
def test_both_sides_train_for_the_budget_in_slices(inputs, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    directory = duel.working_directory("duel")
    # The variants have been measured.
    fastest = {"processes": 1, "bf16": False, "compile": False}
    others = [fastest | {"compile": True}, fastest | {"bf16": True}]
    others += [fastest | {"processes": duel.num_cores(), "bf16": bf16} for bf16 in (False, True)]
    rates = {json.dumps(variant): 1.0 for variant in others} | {json.dumps(fastest): 2.0}
    (directory / "variants.json").write_text(json.dumps(rates))
    budget = ["--budget", "2s", "--peer-learning-rate", "0.02"]
    assert duel.main(arguments(inputs, *budget)) == 0
    printed = capsys.readouterr().out
    results = json.loads((directory / "results.json").read_text())["rows"]
    for side in duel.SIDES:
        assert results["training seconds"][side] > 1.0
        assert results["tokens seen"][side] > results["updates"][side] > 1
        assert results["processor seconds"][side] > 1
        assert results["peak memory, MB"][side] > 50
    settings = json.loads((directory / "settings.json").read_text())
    assert settings["peer"]["mlm_probability"] == settings["ours"]["masking"]["masked_lm_prob"] == 0.3
    # Both sides have our lengths and batches; padding is not counted.
    assert [lines[2] for lines in settings["peer"]["lines"]] == [8, 4]
    assert results["tokens seen"]["peer"] <= results["updates"]["peer"] * 4 * 32
    assert re.search(r"\| held-out MLM loss, nats a token \| \d\.\d{3} \| \d\.\d{3} \| \d\.\d\d \|", printed)
    assert "made pairs: swap" in printed

    assert '"learning_rate": 0.02, "budget": 2.0, "warmup": 0.1' in printed

    # A finished duel trains and scores nothing again, and prints the same; other settings are refused.
    assert duel.main(arguments(inputs, *budget)) == 0
    again = capsys.readouterr()
    assert "training from" not in again.err
    assert again.out.partition("| what")[2] == printed.partition("| what")[2]
    assert duel.main(arguments(inputs, "--budget", "3s")) == UsageError.exit_code

    # Other pairs under the same name are scored anew.
    scores = directory / "ours-scores.json"
    stored = json.loads(scores.read_text())
    scores.write_text(json.dumps(stored | {"made pairs": stored["made pairs"] | {"pairs": "of another file"}}))
    assert duel.main(arguments(inputs, *budget)) == 0
    assert "ours: made pairs scored" in capsys.readouterr().err
    assert json.loads(scores.read_text()) == stored


def test_instances_of_another_corpus_are_refused(inputs, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    other = small_corpus.make_corpus(tmp_path / "corpus", [small_corpus.make_documents(60, held_out=[1])])
    assert duel.main([*arguments(inputs), "--corpus", str(other)]) == UsageError.exit_code
    assert f"not made of the corpus {other}" in capsys.readouterr().err
    assert not (tmp_path / "benchmarks" / "duel" / "inputs.json").exists()


def test_another_corpus_is_refused_after_a_failed_start(inputs, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    assert duel.main(arguments(inputs, "--budget", "")) == UsageError.exit_code
    (tmp_path / "other").mkdir()
    others = make_inputs(tmp_path / "other", held_out=range(1, 60, 6))
    assert duel.main(arguments(others)) == UsageError.exit_code
    assert "give another --name" in capsys.readouterr().err


def test_peer_gets_the_learning_rate_and_order_with_the_lowest_loss(texts, tmp_path):
    corpus, tokenizer = texts
    duel.write_test(corpus, tokenizer, 32, tmp_path / "test.npz")
    run_mlm.write_lines(corpus, tokenizer, 32, tmp_path / "lines.npy")
    new_weights(tmp_path / "start", tokenizer)
    # The trainings at a rate of 1 and with like lengths are finished. That at 0 keeps its initial weights.
    new_weights(tmp_path / "learning_rate-1" / "model", tokenizer, spread=0.5)
    grouped = tmp_path / "learning_rate-0-like_lengths-1" / "model"
    new_weights(grouped, tokenizer, spread=1.0)
    lines = [run_mlm.Lines(2.0, str(tmp_path / "lines.npy"), 4)]
    case = run_mlm_case(lines=lines, model=str(tmp_path / "start"), budget=2.0, warmup=0.1, decay=0.4)
    best, losses = duel.best_recipe(case, [1.0, 0.0], tmp_path / "test.npz", tmp_path)
    assert losses["learning_rate 0"] < losses["learning_rate 1"] < losses["learning_rate 0, like_lengths 1"]
    assert best == dataclasses.replace(case, learning_rate=0.0)
    assert run_mlm.newest_checkpoint(tmp_path / "learning_rate-0").seconds >= duel.SEARCH_SHARE * 2.0

    # One rate is not compared with others; like lengths that are better are taken.
    shutil.rmtree(grouped)
    shutil.copytree(tmp_path / "learning_rate-0" / "model", grouped)
    shutil.rmtree(tmp_path / "learning_rate-0" / "model")
    new_weights(tmp_path / "learning_rate-0" / "model", tokenizer, spread=1.0)
    best, losses = duel.best_recipe(case, [0.0], tmp_path / "test.npz", tmp_path)
    assert best == dataclasses.replace(case, learning_rate=0.0, like_lengths=True)
    assert list(losses) == ["learning_rate 0", "learning_rate 0, like_lengths 1"]


@pytest.mark.parametrize(
    ("architecture", "peer"), [(BertConfig, "BertForMaskedLM"), (ModernConfig, "ModernBertForMaskedLM")]
)
def test_peer_stops_and_goes_on_with_its_clock(texts, tmp_path, monkeypatch, architecture, peer):
    corpus, tokenizer = texts
    lines = tmp_path / "lines.npy"
    run_mlm.write_lines(corpus, tokenizer, 16, lines)
    initial = new_weights(tmp_path / "start", tokenizer, architecture=architecture)
    case = run_mlm_case(
        lines=[run_mlm.Lines(1000.0, str(lines), 4)],
        model=str(tmp_path / "start"),
        output=str(tmp_path / "peer"),
        budget=1000.0,
        mlm_probability=0.4,
    )
    original = run_mlm._Clock.on_step_end

    def stop_after_three_steps(clock, args, state, control, **rest):
        assert rest["train_dataloader"].collate_fn.mlm_probability == 0.4
        if state.global_step == 3:
            signal.raise_signal(signal.SIGTERM)
        original(clock, args, state, control, **rest)

    previous = signal.getsignal(signal.SIGTERM)
    try:
        monkeypatch.setattr(run_mlm._Clock, "on_step_end", stop_after_three_steps)
        run_mlm.run(case)
        checkpoint = run_mlm.newest_checkpoint(tmp_path / "peer")
        assert (checkpoint.path.name, checkpoint.updates) == ("checkpoint-3", 3)
        first = checkpoint.seconds
        assert first > 0
        assert checkpoint.tokens == np.count_nonzero(np.load(lines)[:12] != tokenizer.pad_id)
        assert not case.finished.exists()

        # The budget ends with the first step of the next slice: only the clock of the checkpoint knows it.
        run_mlm.run(dataclasses.replace(case, budget=first))
        checkpoint = run_mlm.newest_checkpoint(tmp_path / "peer")
        assert checkpoint.updates == 4
        assert checkpoint.seconds > first
        assert checkpoint.tokens == np.count_nonzero(np.load(lines)[:16] != tokenizer.pad_id)
    finally:
        signal.signal(signal.SIGTERM, previous)
    trained, _ = load_model(BertForPreTraining, case.finished)
    assert json.loads((case.finished / "config.json").read_text())["architectures"] == [peer]
    # At a rate of 0 the weights are those that it was given.
    words = [next(iter(model.parameters())) for model in (trained, initial)]
    assert len(words[0]) == tokenizer.vocab_size
    assert torch.equal(*words)


def test_learning_rate_and_lines_follow_the_clock(tmp_path):
    tokenizer = transformers.BertTokenizerFast(vocab={"[PAD]": 0, "[CLS]": 1, "[SEP]": 2, "[MASK]": 3, "[UNK]": 4})
    short = np.array([[1, 5, 2, 0], [1, 6, 2, 0], [1, 7, 8, 2], [1, 9, 9, 2]], dtype=np.uint16)
    long = np.array([[1, 5, 6, 7, 8, 2, 0, 0], [1, 9, 5, 6, 7, 8, 9, 2]], dtype=np.uint16)
    np.save(tmp_path / "short.npy", short)
    np.save(tmp_path / "long.npy", long)
    lines = [(50.0, str(tmp_path / "short.npy"), 4), (100.0, str(tmp_path / "long.npy"), 2)]
    case = run_mlm_case(lines=[run_mlm.Lines(*some) for some in lines], learning_rate=1.0)
    assert run_mlm.RunMlmCase.from_json(case.to_json()) == case
    previous = signal.getsignal(signal.SIGTERM)
    try:
        clock = run_mlm._Clock(case)
    finally:
        signal.signal(signal.SIGTERM, previous)
    collator = run_mlm._LineCollator(tokenizer, mlm_probability=1e-9)
    collator.clock, collator.special_ids = clock, [0, 1, 2]

    shares, batches = [], []
    for seconds in (0.0, 2.5, 5.0, 50.0, 80.0, 90.0, 100.0, 101.0):
        clock.agreed = seconds
        shares.append(clock.learning_rate_share(0))
        batches.append(collator([0])["input_ids"].tolist())
    assert shares == pytest.approx([0.0, 0.5, 1.0, 1.0, 1.0, 0.5, 0.0, 0.0])
    # A place of the order has two short lines or a long one; lines are padded to the longest of them.
    assert batches[:3] == [short[:2, :3].tolist()] * 3
    assert batches[3:] == [long[:1, :6].tolist()] * 5

    # After the last line comes the first.
    clock.agreed = 0.0
    assert collator([3])["attention_mask"].tolist() == [[1, 1, 1, 1]] * 2
    assert collator([4])["input_ids"].tolist() == short[:2, :3].tolist()

    # One shape for a compiled model.
    clock.case = dataclasses.replace(case, compile=True)
    assert collator([0])["input_ids"].shape == (2, 4)

    # Of like lengths, the longest lines of several batches come first.
    clock.case = dataclasses.replace(case, like_lengths=True)
    mixed = short[[0, 2, 1, 3]]
    np.save(tmp_path / "short.npy", mixed)
    assert collator([0])["input_ids"].tolist() == mixed[[1, 3]].tolist()
    assert collator([1])["input_ids"].tolist() == mixed[[0, 2], :3].tolist()
    np.save(tmp_path / "short.npy", mixed[np.arange(6) % 4])  # the last batch is not whole
    assert [collator([place])["attention_mask"].sum().item() for place in range(4)] == [8, 6, 8, 6]


def test_lines_have_the_sentences_of_a_document_in_random_order(texts, tmp_path):
    corpus, tokenizer = texts
    run_mlm.write_lines(corpus, tokenizer, 12, tmp_path / "lines.npy")
    expected = collections.Counter()
    for document in documents_of(corpus, "train"):
        lines = [line.tolist() for line in run_mlm.lines_of(document, tokenizer, 12)]
        expected.update(tuple(line + [tokenizer.pad_id] * (12 - len(line))) for line in lines)
        assert all(line[0] == tokenizer.cls_id and line[-1] == tokenizer.sep_id for line in lines)
        sentences = [tokenizer.encode(sentence)[:10] for sentence in document.sentences]
        assert [id for line in lines for id in line[1:-1]] == [id for sentence in sentences for id in sentence]
        # No sentence that would have fitted into the line before it begins a line.
        starts = np.cumsum([0, *map(len, sentences)])
        ends = np.cumsum([len(line) - 2 for line in lines])
        assert set(ends) <= set(starts)
        for line, end in zip(lines[:-1], ends):
            assert len(line) + len(sentences[int(np.searchsorted(starts, end))]) > 12
    found = list(map(tuple, np.load(tmp_path / "lines.npy").tolist()))
    assert collections.Counter(found) == expected
    assert found != list(expected.elements())


def test_losses_equal_those_of_single_texts_in_transformers(texts, tmp_path):
    corpus, tokenizer = texts
    duel.write_test(corpus, tokenizer, 32, tmp_path / "test.npz")
    new_weights(tmp_path / "model", tokenizer, spread=0.5)
    losses, counts = duel.held_out_losses(tmp_path / "model", tmp_path / "test.npz")

    stored = np.load(tmp_path / "test.npz")
    model = transformers.BertForMaskedLM.from_pretrained(tmp_path / "model").eval()
    for row in range(0, len(losses), 7):
        ids = torch.from_numpy(stored["ids"][row].astype(np.int64))
        length, chosen = int((ids >= 0).sum()), torch.from_numpy(stored["masked"][row])
        labels = torch.where(chosen, ids, -100)[:length]
        inputs_of_row = torch.where(chosen, tokenizer.mask_id, ids)[:length]
        with torch.inference_mode():
            loss = model(input_ids=inputs_of_row[None], labels=labels[None]).loss.item()
        assert counts[row] == max(1, round(0.15 * (length - 2)))
        assert losses[row] / counts[row] == pytest.approx(loss, abs=1e-4)


def test_interval_holds_the_difference():
    rng = np.random.default_rng(0)
    counts = np.full(400, 10)
    peer = rng.normal(50.0, 5.0, size=400)
    difference, low, high = duel.difference_of_losses(peer - rng.normal(2.0, 1.0, size=400), peer, counts)
    assert low < difference < high < 0
    assert difference == pytest.approx(-0.2, abs=0.02)
    assert high - low == pytest.approx(4 * 0.1 / 20, rel=0.2)


def test_failed_and_stopped_processes(tmp_path):
    log, usage = tmp_path / "log", duel.Usage()
    with pytest.raises(BertError, match="ended with 3: told why"):
        duel.run_slice([([sys.executable, "-c", "print('told why'); exit(3)"], {})], 60.0, log, usage)
    assert usage.processor_seconds > 0

    # A process that saves its state when it is told to end; the time of the slice is over at once.
    code = "import signal, sys, time; signal.signal(15, lambda *_: sys.exit('saved'))"
    code += "; print('up', flush=True); time.sleep(60)"
    duel.run_slice([([sys.executable, "-c", code], {})], 3.0, log, usage)
    assert log.read_text().endswith("up\nsaved\n")
    assert usage.peak_bytes > 1e6
