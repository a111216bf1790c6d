"""The benchmark of many documents runs all jobs and reports memory and elements."""

import pytest

from benchmarks import wikipedia_scale


@pytest.mark.slow
def test_each_job_has_a_row_with_memory_and_elements(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    asked = ["--documents", "3000", "--workers", "1", "--jobs"]
    for some in (["corpus"], ["vocabulary", "instances"]):  # of which each reads what an earlier one has written
        assert wikipedia_scale.main([*asked, *some]) == 0
    printed = capsys.readouterr()
    # A row is printed as soon as its job has ended: the next one may take hours.
    assert [line.split("; ")[1] for line in printed.err.splitlines() if line.startswith("documents: 3,000; ")] == [
        "job: corpus", "job: vocabulary", "job: instances"
    ]  # fmt: skip
    rows = [[cell.strip() for cell in line.strip("| ").split("|")] for line in printed.out.splitlines()]
    rows = [row for row in rows if row[0] == "3,000"]
    assert [row[1] for row in rows] == ["corpus", "vocabulary", "instances"]
    assert all(int(row[3].replace(",", "")) > 50 for row in rows)
    assert all(int(row[5].replace(",", "")) >= 1 for row in rows)


def test_some_documents_repeat_earlier_ones(tmp_path):
    path = tmp_path / "made.txt"
    wikipedia_scale.write_documents(path, 200)
    documents = path.read_text().split("\n\n")[:-1]
    assert len(documents) == 200
    assert len(set(documents)) == 196
