"""The zip for the GLUE benchmark."""

import zipfile

import pytest

from bert_pipeline.errors import InputError
from bert_pipeline.tasks.submission import OFFICIAL_ROWS, WNLI_NOTE, write_submission


@pytest.fixture
def few_questions(monkeypatch):
    """QQP's test set is large: writing it once is enough."""
    monkeypatch.setitem(OFFICIAL_ROWS, "QQP.tsv", 3)


def read(path):
    with zipfile.ZipFile(path) as container:
        return {name: container.read(name).decode().splitlines() for name in container.namelist()}


def test_zip_holds_the_eleven_files_with_header_and_all_rows(tmp_path):
    notes = write_submission(tmp_path / "s.zip", {"rte/test": {str(n): "not_entailment" for n in range(3000)}})
    files = read(tmp_path / "s.zip")
    assert list(files) == [
        "CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "QNLI.tsv",
        "RTE.tsv", "WNLI.tsv", "AX.tsv",
    ]  # fmt: skip
    for name, lines in files.items():
        assert lines[0] == "index\tprediction"
        assert [int(line.split("\t")[0]) for line in lines[1:]] == list(range(OFFICIAL_ROWS[name]))
    assert set(files["RTE.tsv"][1:]) == {f"{n}\tnot_entailment" for n in range(3000)}
    assert {line.split("\t")[1] for line in files["WNLI.tsv"][1:]} == {"0"}
    assert WNLI_NOTE in notes
    assert sum("filled with" in note for note in notes) == 9
    assert not any(note.startswith("RTE") for note in notes)


@pytest.mark.usefixtures("few_questions")
def test_predictions_stand_in_the_files_of_their_splits_sorted_by_index(tmp_path):
    notes = write_submission(
        tmp_path / "s.zip",
        {
            "mnli/test_matched": {"1": "neutral", "10": "neutral"} | {str(n): "entailment" for n in (0, *range(2, 10))},
            "mnli/ax": {"0": "contradiction"},
            "stsb/test": {"1": 5.7, "0": -0.2, "2": "3.14159"},
            "wnli/test": {"0": "1", "1": "1"},
        },
    )
    files = read(tmp_path / "s.zip")
    assert files["MNLI-m.tsv"][1:3] == ["0\tentailment", "1\tneutral"]
    assert files["MNLI-m.tsv"][-1] == "10\tneutral"
    assert files["AX.tsv"] == ["index\tprediction", "0\tcontradiction"]
    assert files["STS-B.tsv"][1:] == ["0\t0.000", "1\t5.000", "2\t3.142"]
    assert files["WNLI.tsv"][1:] == ["0\t0", "1\t0"]
    assert "AX.tsv: 1 rows, the benchmark expects 1104 and will refuse it" in notes


@pytest.mark.usefixtures("few_questions")
def test_same_predictions_give_the_same_bytes(tmp_path):
    for name in ("a.zip", "b.zip"):
        write_submission(tmp_path / name, {"cola/test": {"0": "1", "1": "0"}})
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


@pytest.mark.parametrize(
    ("predictions", "message"),
    [
        ({"cola/test": {"0": "acceptable"}}, r"CoLA.tsv: index 0: prediction 'acceptable', expected one of 0, 1"),
        ({"stsb/test": {"0": "nan"}}, r"STS-B.tsv: index 0: prediction 'nan', expected a number"),
        ({"cola/test": {"0": "1", "2": "1"}}, r"CoLA.tsv: no prediction for index 1, expected 0 to 1"),
        ({"cola/test": {"x": "1"}}, r"CoLA.tsv: index 'x', expected a whole number"),
        ({"cola/dev": {"0": "1"}}, r"cola/dev is no part of a GLUE submission \(did you mean 'cola/test'"),
        ({"squad1/dev": {}}, r"squad1/dev is no part"),
    ],
)
def test_mismatched_predictions_raise_and_write_nothing(tmp_path, predictions, message):
    with pytest.raises(InputError, match=message):
        write_submission(tmp_path / "s.zip", predictions)
    assert list(tmp_path.iterdir()) == []
