"""`bert exam`: kinds beside baseline and chance, parts, what is built once, and what is refused."""

import json
from unittest import mock

import numpy as np
import pytest
import torch
from small_corpus import make_corpus, make_documents, make_tokenizer

from bert_model.cli import main
from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.initialization import new_model
from bert_model.model.weights import save_model
from bert_model.zero_shot.result import PairScores, exam_result, exam_table
from bert_pipeline.exam import job
from bert_pipeline.exam.pairs import Pair, read_pairs


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A corpus, and a model whose next-sentence head is untrained."""
    directory = tmp_path_factory.mktemp("exam")
    make_corpus(directory / "corpus", [make_documents(80, held_out=range(0, 80, 5))])
    tokenizer = make_tokenizer()
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=tokenizer.vocab_size, max_position_embeddings=64, **shape)
    for name, bias in (("model", 0.0), ("next", 1.0)):
        model = new_model(BertForPreTraining, config, seed=1)
        with torch.no_grad():
            model.cls.seq_relationship.bias.fill_(bias)
        (directory / name).mkdir()
        save_model(model, directory / name, tokenizer)
    return directory


@pytest.fixture
def home(workplace, monkeypatch):
    """The working directory of the commands; their home is shared by the tests of this file."""
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("BERT_HOME", str(workplace / "home"))
    return workplace


def run(words, capsys):
    code = main(["exam", *words.split()])
    return code, capsys.readouterr().out


def test_made_pairs_are_built_once_and_reported_by_kind(home, capsys, monkeypatch):
    code, table = run("model --corpus corpus --output result.json", capsys)
    assert code == 0
    result = json.loads((home / "result.json").read_text())
    (exam,) = (home / "home" / "exams").glob("[!.]*")
    pairs = [pair for pair in read_pairs(exam) if pair.part == "reporting"]
    # The head of `model` is untrained: its answers would be noise.
    assert set(result["kinds"]) == {pair.kind for pair in pairs} - {"next_sentence"}
    assert result["kinds"]["swap"]["score"]["count"] == sum(pair.kind == "swap" for pair in pairs)
    assert f"mean over {len(result['kinds'])} kinds: {result['mean']:.1f}" in table
    assert {name: (good > bad) + 0.5 * (good == bad) for name, (good, bad) in result["scores"].items()} == (
        result["correct"]
    )

    # Again, on the other part and from the directory itself: nothing is built.
    monkeypatch.setattr(job, "build_exam", mock.Mock(side_effect=AssertionError))
    assert run("model --corpus corpus", capsys) == (0, table)
    assert run(f"model --corpus {exam} --part choosing", capsys)[1] != table


def test_trained_next_sentence_head_is_examined(home, capsys):
    _, table = run("next --corpus corpus", capsys)
    assert "next_sentence" in table


def test_baseline_is_beside_every_kind(home, capsys):
    run("model --corpus corpus --output result.json", capsys)
    kinds = json.loads((home / "result.json").read_text())["kinds"]
    for result in kinds.values():
        parts = [result["ngram_baseline_solved"], result["ngram_baseline_unsolved"]]
        assert (
            sum(part["count"] for part in parts if part)
            == result["score"]["count"]
            == result["ngram_baseline"]["count"]
        )
        assert result["chance"] == 50


def test_output_may_be_in_a_new_folder(home, capsys):
    (home / "few.tsv").write_text("Kalo mipan.\tMipan kalo.\torder\n")
    code, table = run("model --pairs few.tsv --output results/few.json", capsys)
    assert code == 0
    assert "order" in table
    assert json.loads((home / "results" / "few.json").read_text())["kinds"]["order"]["score"]["count"] == 1


def test_output_names_a_model_without_the_secrets_of_its_url(home, capsys, monkeypatch):
    monkeypatch.setattr("bert_model.registry.resolve.resolve_model", lambda *_, **__: home / "model")
    (home / "few.tsv").write_text("Kalo mipan.\tMipan kalo.\torder\n")
    assert run("https://me:secret@host/model --pairs few.tsv --output named.json", capsys)[0] == 0
    assert json.loads((home / "named.json").read_text())["model"] == "https://host/model"


def test_table_of_ones_own_is_scored_whole(home, capsys):
    (home / "own.tsv").write_text("Kalo mipan.\tMipan kalo.\torder\nKaka tusa\ttusa kaka\torder\n")
    for option, whole_words in (("", False), ("--whole-words", True)):
        code, table = run(f"model --pairs own.tsv --output own.json {option}", capsys)
        assert code == 0
        assert table.splitlines()[2].split()[:2] == ["order", "2"]
        assert json.loads((home / "own.json").read_text())["whole_words"] is whole_words


def test_blimp_is_found_below_the_home(home, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    row = {"sentence_good": "Kalo mipan.", "sentence_bad": "Mipan kalo.", "UID": "order", "pairID": "0"}
    (tmp_path / "data" / "blimp").mkdir(parents=True)
    (tmp_path / "data" / "blimp" / "order.jsonl").write_text(json.dumps({**row, "linguistics_term": "syntax"}) + "\n")
    code, table = run("model --pairs blimp", capsys)
    assert code == 0
    assert table.splitlines()[2].split()[:2] == ["order", "1"]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("model", 2, "--pairs made: give --corpus DIR"),
        ("model --pairs blimp", 1, "blimp.zip: not found; download https://github.com/alexwarstadt/blimp"),
        ("model --pairs absent.tsv", 1, "absent.tsv: cannot be read"),
        ("model --corpus model", 1, "model: no manifest.json"),
        ("model --corpus corpus --output model/config.json/r.json", 1, "config.json: exists and is not a directory"),
    ],
)
def test_refusals(home, capsys, words, code, message):
    assert main(["exam", *words.split()]) == code
    assert message in capsys.readouterr().err


def test_model_is_found_before_a_corpus_is_counted(home, capsys, monkeypatch):
    monkeypatch.setattr(job, "prepared_exam", None)
    assert main(["exam", "./absent", "--corpus", "corpus"]) == 2
    assert "./absent: no such model directory" in capsys.readouterr().err


def test_part_without_pairs_is_refused(home, capsys):
    (home / "few.tsv").write_text("Kalo mipan.\tMipan kalo.\torder\n")
    (only,) = read_pairs(home / "few.tsv")
    other = "choosing" if only.part == "reporting" else "reporting"
    assert main(["exam", "model", "--pairs", "few.tsv", "--part", other]) == 1
    assert f"few.tsv: none of the 1 pairs is for {other}; give more pairs, or --part all" in capsys.readouterr().err


def test_pairs_that_the_baseline_solves_are_apart():
    pairs = tuple(
        Pair(pair_id=str(i), kind=kind, group=group, good=("x",), bad=("y",))
        for i, (kind, group) in enumerate([("a", "g"), ("a", "g"), ("a", "g"), ("b", "g"), ("c", "h")])
    )
    scores = PairScores(pairs, good=np.array([1.0, 0, 1, 1, 0]), bad=np.array([0.0, 1, 0, 0, 1]))
    result = exam_result(scores, np.array([1.0, 1, 0.5, 0, 1]))
    a = result.kinds["a"]
    assert (a.ngram_baseline_solved.count, a.ngram_baseline_solved.accuracy) == (2, 50)
    assert (a.ngram_baseline_unsolved.count, a.ngram_baseline_unsolved.accuracy) == (1, 100)
    assert a.ngram_baseline.accuracy == pytest.approx(250 / 3)
    assert result.kinds["b"].ngram_baseline_solved is None
    assert result.mean == pytest.approx((200 / 3 + 100 + 0) / 3)
    assert result.group_mean == pytest.approx(((200 / 3 + 100) / 2 + 0) / 2)
    assert result.ngram_baseline_mean == pytest.approx((250 / 3 + 0 + 100) / 3)
    assert exam_table(result).endswith("mean over groups: 41.7, trigram 70.8, chance 50.0")
    assert "mean over 5 pairs: 60.0 (23.1-88.2), trigram 70.0" in exam_table(result)
    assert result.ngram_baseline_group_mean == pytest.approx(((250 / 3 + 0) / 2 + 100) / 2)
    assert exam_table(result).splitlines()[2].split()[:3] == ["a", "3", "66.7"]
