"""The workers' results are complete, or the job fails with a sentence that names what is missing."""

import json

import pytest

from bert_pipeline.beam import beam
from bert_pipeline.beam.options import pipeline_options
from bert_pipeline.beam.results import WriteResults, check_total, read_results
from bert_pipeline.errors import ArtifactError

PLAN = {"a": 30, "b": 1_000, "c": None}
RESULTS = [{"name": "c", "rows": 7}, {"name": "a", "rows": 30}, {"name": "b", "rows": 1_000}]


@pytest.mark.parametrize("results", [RESULTS, []])
def test_results_of_a_pipeline_are_read_in_the_order_of_the_plan(tmp_path, results):
    path = tmp_path / "results.json"
    with beam.Pipeline(options=pipeline_options(["--workers", "1"])) as pipeline:
        _ = pipeline | beam.Create(results) | WriteResults(path)
    plan = PLAN if results else {}
    assert [result["name"] for result in read_results(path, plan)] == list(plan)


@pytest.mark.parametrize(
    ("results", "message"),
    [
        ([RESULTS[1]], r"^no result for b, c \(1,000 rows\); found 1 of 3 shards; nothing was published, run"),
        ([*RESULTS, RESULTS[0]], r"^found 4 results, expected those of 3 shards; nothing was published"),
        ([*RESULTS[:2], {"name": "b", "rows": 999}], r"^b: found 999 rows, expected 1,000; nothing was published"),
    ],
)
def test_results_that_differ_from_the_plan_raise(tmp_path, results, message):
    (tmp_path / "results.json").write_text(json.dumps({"results": results, "failures": []}))
    with pytest.raises(ArtifactError, match=message):
        read_results(tmp_path / "results.json", PLAN)


def test_results_that_were_not_written_raise(tmp_path):
    with pytest.raises(ArtifactError, match=r"results\.json: not found, expected the results of all shards"):
        read_results(tmp_path / "results.json", PLAN)


def test_other_totals_raise():
    check_total("words", 5, 5)
    with pytest.raises(ArtifactError, match="words: found 4, expected 5; nothing was published"):
        check_total("words", 4, 5)
