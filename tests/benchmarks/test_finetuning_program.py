"""The fine-tuning benchmark measures both sides on the same rows, and runs without its peer."""

import importlib.util
import json

import pytest

from benchmarks import finetuning
from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.initialization import new_model
from bert_model.model.weights import save_model
from bert_pipeline.vocabulary.tokenizer import Tokenizer

WORDS = ("the", "river", "is", "long", "wide", "old", "town", "where", "?", ".")


@pytest.fixture
def inputs(tmp_path):
    tokenizer = Tokenizer.from_tokens(("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS), True)
    shape = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(tokenizer.tokens), max_position_embeddings=128, **shape)
    (tmp_path / "model").mkdir()
    save_model(new_model(BertForPreTraining, config, seed=1), tmp_path / "model", tokenizer)
    for name in ("train.tsv", "dev.tsv"):
        rows = [f"{n}\twhere is the town ?\tthe river is {'long ' * (n % 9)}.\tentailment" for n in range(40)]
        (tmp_path / name).write_text("index\tquestion\tsentence\tlabel\n" + "\n".join(rows) + "\n")
    questions = [
        {"id": str(n), "question": "where ?", "answers": [{"text": "river", "answer_start": 4}]} for n in (1, 2)
    ]
    paragraph = {"context": "the river is long .", "qas": questions}
    document = {"version": "1.1", "data": [{"title": "river", "paragraphs": [paragraph]}]}
    (tmp_path / "squad.json").write_text(json.dumps(document))
    return ["--data", str(tmp_path), "--model", str(tmp_path / "model"), "--squad", str(tmp_path / "squad.json")]


def test_program_runs_without_accelerate(inputs, capsys, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "accelerate" else find(name))
    assert finetuning.main(["--quick", *inputs]) == 0
    table = capsys.readouterr().out
    for what in ("training, QNLI, 1 layers of 16", "predicting, QNLI, 1 layers of 16", "SQuAD questions to windows"):
        assert what in table
    assert table.count("not available") == 2


def test_program_compares_both_samplers_of_the_trainer(inputs, capsys):
    assert finetuning.main(["--quick", *inputs]) == 0
    table = capsys.readouterr().out
    assert table.count("Trainer, random order") == table.count("Trainer, like lengths") == 2
    assert "not available" not in table


def test_peer_logits_keep_the_order_of_the_examples(inputs):
    case = finetuning.case_of(finetuning.argument_parser("cpu").parse_args([*inputs, "--examples", "40"]), "cpu")
    peer = finetuning.peer_finetuning(case, grouped=True)
    peer.train()
    together, rows = peer.logits(), peer.dev_rows
    for row in (0, 17, 39):
        peer.dev_rows = rows[row : row + 1]
        assert together[row].tolist() == pytest.approx(peer.logits()[0].tolist(), abs=1e-5)
    assert len(peer.scores) == 1


def test_regression_task_is_rejected(inputs, capsys):
    assert finetuning.main(["--quick", "--task", "stsb", *inputs]) == 2
    assert "found regression, expected a classification" in capsys.readouterr().err
