"""The comparison of sentence segmenters reads its cases and runs without its peers."""

import types

from benchmarks.sentences import read_cases, render, run_ours

CASES = "# comment\nOne here. Two here.\n---\nOne here.\nTwo here.\n===\nMr. X came.\n---\nMr. X came.\n===\nnone\n"


def test_cases_are_read_with_expected_sentences(tmp_path):
    path = tmp_path / "en.txt"
    path.write_text(CASES)
    assert read_cases(path) == [("One here. Two here.", ["One here.", "Two here."]), ("Mr. X came.", ["Mr. X came."])]


def test_table_without_peers_has_our_row(tmp_path):
    path = tmp_path / "en.txt"
    path.write_text(CASES)
    peer = types.SimpleNamespace(problem="no network", versions={})
    table = render([*read_cases(path), ("One. Two.", ["One. Two."])], ["A paragraph. " * 50], peer)
    assert "| sentencex | 2 of 3 |" in table
    assert "pysbd" not in table


def test_run_ours_splits_every_text():
    found, seconds = run_ours(["One here. Two here.", "Three."], ["A paragraph."])
    assert found == [["One here.", "Two here."], ["Three."]]
    assert seconds >= 0
