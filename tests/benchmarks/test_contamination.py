"""Runs of words are found across punctuation and case, and nothing else is."""

import json

import numpy as np
import pytest

from benchmarks import contamination
from benchmarks.contamination import HELD_OUT, PAIRS, RUN_WORDS, Text, find_runs, found_pairs
from bert_model.zero_shot.result import PairScores, exam_result
from bert_pipeline.corpus.job import build_corpus
from bert_pipeline.corpus.splits import CorpusConfig
from bert_pipeline.errors import InputError
from bert_pipeline.exam.pairs import Pair, read_pairs

WORDS = [f"word{chr(97 + index // 26)}{chr(97 + index % 26)}" for index in range(60)]


@pytest.mark.parametrize(
    ("piece", "runs", "found"),
    [
        (" ".join(WORDS[5 : 5 + RUN_WORDS]), 1, 1),
        (", ".join(WORDS[5 : 5 + RUN_WORDS]).upper() + "!", 1, 1),
        (" ".join(WORDS[5 : 4 + RUN_WORDS]) + " other", 1, 0),
        (" ".join(WORDS[5 : 5 + RUN_WORDS]) + " other", 2, 1),
        (" ".join(WORDS[7:12]), 1, 1),  # a short text is one run
        (" ".join([*WORDS[7:12], "other"]), 1, 0),
        ("", 0, 0),
    ],
)
def test_runs_are_found(piece, runs, found):
    assert find_runs([Text("set", "1", (piece,))], ["Nothing.", " ".join(WORDS)]) == [(runs, found)]


def test_runs_do_not_cross_documents_or_pieces():
    halves = [" ".join(WORDS[:8]), " ".join(WORDS[8:16])]
    assert find_runs([Text("set", "1", (" ".join(WORDS[:16]),))], halves) == [(4, 0)]
    assert find_runs([Text("set", "1", tuple(halves))], [" ".join(WORDS[:16])]) == [(2, 2)]


def test_pairs_of_a_found_document_are_found_too():
    pairs = [
        Pair(pair_id=name, kind="swap", good=("a b",), bad=("b a",), source=source)
        for name, source in (("one", "wiki:1"), ("two", "wiki:2"), ("three", "wiki:2"), ("four", "wiki:3"))
    ]
    found = [Text(HELD_OUT, "wiki:2", ()), Text(PAIRS, "four", ()), Text(PAIRS, "wiki:1", ())]
    assert found_pairs(pairs, found) == {"two", "three", "four"}


def test_program_counts_by_test_set(tmp_path, capsys):
    lines = [f"This is sentence number {n} of a text about the {WORDS[n]} and its many friends." for n in range(30)]
    (tmp_path / "a.txt").write_text("\n\n".join(lines))
    build_corpus([f"lines:{tmp_path / 'a.txt'}"], tmp_path / "corpus", CorpusConfig(held_out_per_mille=100))
    (tmp_path / "pairs").mkdir()
    texts = [*lines, "Nobody has written this."]
    bad = "This is no sentence."
    records = [
        {"UID": "u", "pairID": str(n), "sentence_good": text, "sentence_bad": bad} for n, text in enumerate(texts)
    ]
    (tmp_path / "pairs" / "u.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    # An exam with a half of its pairs right, and with the one that nobody has written.
    pairs = read_pairs(tmp_path / "pairs")
    right = np.arange(31) % 2
    exam = exam_result(PairScores(tuple(pairs), right, 1 - right), None)
    (tmp_path / "exam.json").write_text(json.dumps(exam.to_json()))
    listed = tmp_path / "found.jsonl"
    program = [str(tmp_path / "corpus"), "--pairs", str(tmp_path / "pairs"), "--output", str(listed)]
    assert contamination.main([*program, "--exam", str(tmp_path / "exam.json")]) == 0
    table = capsys.readouterr().out
    rows = [json.loads(line) for line in listed.read_text().splitlines()]
    num_held_out = int(table.split("| held-out documents | ")[1].split(" ")[0])
    assert num_held_out >= 1
    assert f"| minimal pairs | 31 | {30 - num_held_out} |" in table
    assert f"| held-out documents | {num_held_out} | 0 | 0.00%" in table
    found = {row["id"] for row in rows}
    assert found <= {f"u:{n}" for n in range(30)}
    clean = [value for pair, value in zip(pairs, right) if pair.pair_id not in found]
    assert f"| all | 31 | {100 * 15 / 31:.2f} | - |" in table
    assert f"| without those found | {len(clean)} | {100 * np.mean(clean):.2f} | - |" in table

    # An exam on other pairs.
    (tmp_path / "exam.json").write_text(json.dumps({"correct": {**exam.correct, "v:1": 1.0}}))
    assert contamination.main([*program, "--exam", str(tmp_path / "exam.json")]) == InputError.exit_code
    assert "31 of its 32 pairs are in --pairs" in capsys.readouterr().err
