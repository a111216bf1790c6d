"""Metrics of classification and regression against scikit-learn and SciPy, and scoring by task."""

import itertools
import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.stats
import sklearn.metrics

from bert_model.kinds import kind_of
from bert_model.kinds.scores import score_files
from bert_model.metrics import glue
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.example import ChoiceExample, TextExample

SEEDS = range(25)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("classes", [2, 3, 7])
def test_classification_metrics_equal_scikit_learn(seed, classes):
    rng = np.random.default_rng(seed)
    gold = [str(label) for label in rng.integers(classes, size=4 + seed * 11)]
    share = rng.random()
    predicted = [a if rng.random() < share else str(rng.integers(classes)) for a in gold]
    assert glue.accuracy(gold, predicted) == pytest.approx(100 * sklearn.metrics.accuracy_score(gold, predicted))
    expected = 100 * sklearn.metrics.matthews_corrcoef(gold, predicted)
    assert glue.matthews(gold, predicted) == pytest.approx(expected, abs=1e-6)
    expected = 100 * sklearn.metrics.f1_score(gold, predicted, average="macro", zero_division=0)
    assert glue.macro_f1(gold, predicted) == pytest.approx(expected, abs=1e-6)
    expected = 100 * sklearn.metrics.f1_score(gold, predicted, labels=["1"], average="macro", zero_division=0)
    assert glue.f1(gold, predicted, "1") == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("seed", SEEDS)
def test_multilabel_metrics_equal_scikit_learn(seed):
    rng = np.random.default_rng(seed)
    labels = [str(number) for number in range(2 + seed % 4)]
    gold, predicted = rng.random((2, 3 + seed, len(labels))) < rng.random((2, 1, len(labels)))
    texts = [[tuple(np.asarray(labels)[row]) for row in rows] for rows in (gold, predicted)]
    scores = glue.multilabel_f1(*texts, labels)
    for average in ("micro", "macro"):
        expected = 100 * sklearn.metrics.f1_score(gold, predicted, average=average, zero_division=0)
        assert scores[f"{average}_f1"] == pytest.approx(expected, abs=1e-6)
    assert glue.accuracy(*texts) == pytest.approx(100 * sklearn.metrics.accuracy_score(gold, predicted))


def test_exact_match_counts_whole_questions():
    ids = ["0-0-0", "0-0-1", "0-1-0", "1-0-0", "1-0-1"]
    assert glue.grouped_exact_match(ids, "11010", "11011") == pytest.approx(100 * 2 / 3)
    assert glue.grouped_exact_match(["0", "1"], "11", "10") == 50.0


@pytest.mark.parametrize("seed", SEEDS)
def test_correlations_equal_scipy_with_ties_and_without(seed):
    rng = np.random.default_rng(seed)
    gold = rng.normal(size=3 + 7 * seed)
    predicted = gold * rng.normal() + rng.normal(size=len(gold))
    if seed % 2:
        gold, predicted = np.round(gold), np.round(2 * predicted)
    for name, oracle in (("pearson", scipy.stats.pearsonr), ("spearman", scipy.stats.spearmanr)):
        expected = 100 * oracle(gold, predicted).statistic
        assert getattr(glue, name)(list(gold), list(predicted)) == pytest.approx(expected, abs=1e-6)


def test_ranks_share_the_mean_of_ties():
    assert list(glue.ranks([3.0, 1.0, 3.0, 2.0, 3.0])) == [4.0, 1.0, 4.0, 2.0, 4.0]


def test_constant_predictions_correlate_with_nothing():
    assert glue.pearson([1.0, 2.0, 3.0], [2.5, 2.5, 2.5]) == 0.0
    assert glue.spearman([1.0, 1.0], [1.0, 2.0]) == 0.0
    assert glue.matthews(["0", "1", "1"], ["1", "1", "1"]) == 0.0
    assert glue.f1(["0", "0"], ["0", "0"], "1") == 0.0


def texts(*labels):
    return [TextExample(str(n), "a", "b", label) for n, label in enumerate(labels)]


def test_score_reports_the_metrics_of_the_task_over_exactly_the_examples():
    examples = texts("1", "0", "1", "1")
    predictions = {"0": "1", "1": "1", "2": "1", "3": "0", "of another file": "1"}
    assert kind_of("mrpc").score(examples, predictions) == {"f1": pytest.approx(200 / 3), "accuracy": 50.0}
    assert set(kind_of("cola").score(examples, predictions)) == {"matthews", "accuracy"}
    assert kind_of("stsb").score(texts(1.0, 2.0, 3.0), {"0": 2, "1": 4, "2": 6}) == pytest.approx(
        {"spearman": 100.0, "pearson": 100.0}
    )
    endings = [ChoiceExample(str(n), "c", ("a", "b", "c", "d"), n % 4) for n in range(8)]
    assert kind_of("swag").score(endings, {str(n): 0 for n in range(8)}) == {"accuracy": 25.0}
    five = [ChoiceExample("0", "c", ("a", "b", "c", "d", "e"), 4)]
    assert kind_of("swag").score(five, {"0": 4}) == {"accuracy": 100.0}


def test_missing_prediction_missing_label_and_empty_set_are_refused():
    with pytest.raises(InputError, match=r"rte: no prediction for example '1' \(one of 2\)"):
        kind_of("rte").score(texts("entailment", "entailment"), {"0": "entailment"})
    with pytest.raises(InputError, match=r"rte: example '0' has no label"):
        kind_of("rte").score(texts(None), {"0": "entailment"})
    with pytest.raises(InputError, match=r"rte: no examples"):
        kind_of("rte").score([], {})
    with pytest.raises(UsageError, match=r"rte: null odds were given"):
        kind_of("rte").score(texts("entailment"), {"0": "entailment"}, na_probs={"0": 0.5})


def test_trivial_baseline_of_each_kind():
    assert kind_of("rte").baseline(texts("entailment", "not_entailment", "entailment"), texts("entailment")) == {
        "accuracy": 100.0
    }
    assert kind_of("mrpc").baseline(texts("1", "1", "0"), texts("1", "0")) == pytest.approx(
        {"f1": 200 / 3, "accuracy": 50.0}
    )
    assert kind_of("stsb").trivial_predictions(texts(1.0, 4.0), texts(0.0, 5.0)) == {"0": 2.5, "1": 2.5}
    assert kind_of("stsb").baseline(texts(1.0, 4.0), texts(0.0, 5.0)) == {"spearman": 0.0, "pearson": 0.0}
    endings = [ChoiceExample(str(n), "c", ("a", "b", "c", "d"), label) for n, label in enumerate((3, 1, 3, 0))]
    assert kind_of("swag").baseline(endings, endings) == {"accuracy": 50.0}
    with pytest.raises(InputError, match="rte: no training examples"):
        kind_of("rte").baseline([], texts("entailment"))


def test_trivial_baseline_by_f1_is_the_positive_class_even_if_rare():
    assert kind_of("qqp").trivial_predictions(texts("0", "0", "1"), texts("0")) == {"0": "1"}
    assert kind_of("cola").trivial_predictions(texts("0", "0", "1"), texts("1")) == {"0": "0"}


@pytest.mark.parametrize("metric", ["micro_f1", "macro_f1", "accuracy"])
def test_trivial_baseline_of_many_labels_is_found_from_their_counts(metric, monkeypatch):
    kind, rng = multilabel("abcde", metric), np.random.default_rng(3)
    for _ in range(20):
        drawn = [tuple(np.asarray(list("abcde"))[rng.random(5) < rng.random(5)]) for _ in range(6)]
        frequent = [label for label, _ in Counter(itertools.chain.from_iterable(drawn)).most_common()]
        sets = [tuple(sorted(frequent[:size])) for size in range(len(frequent) + 1)]
        expected = max(sets, key=lambda own: kind.metric(metric, drawn, [own] * len(drawn)))
        assert kind.best_constant(drawn) == expected
    # Sets of predictions for each example would have 10⁹ cells.
    monkeypatch.setattr(glue, "label_matrix", lambda *_: pytest.fail("compares examples"))
    labels = [f"{number:03}" for number in range(500)]
    drawn = [(labels[0], labels[1 + number % 499]) for number in range(4000)]
    best = {"micro_f1": labels[:1], "macro_f1": labels, "accuracy": labels[:2]}[metric]
    assert multilabel(labels, metric).best_constant(drawn) == tuple(best)


def multilabel(labels, metric):
    names = {"name": "t", "title": "t", "labels": tuple(labels)}
    return kind_of(Task(**names, kind="multilabel", metrics=(metric,), main_metric=metric))


def test_equally_frequent_classes_give_the_first_whatever_the_order():
    for train in (texts("1", "0"), texts("0", "1")):
        assert kind_of("cola").trivial_predictions(train, texts("1")) == {"0": "0"}


@pytest.fixture
def dev_file(tmp_path):
    path = tmp_path / "dev.tsv"
    path.write_text(
        "index\tsentence1\tsentence2\tlabel\n5\ta\tb\tentailment\n6\ta\tb\tnot_entailment\n", encoding="utf-8"
    )
    return path


@pytest.mark.parametrize(
    "content",
    [
        "index\tprediction\n6\tnot_entailment\n5\tnot_entailment\n",
        '{"id": "5", "prediction": "not_entailment", "probability": 0.9}\n{"id": 6, "prediction": "not_entailment"}\n',
    ],
    ids=["table", "json lines"],
)
def test_prediction_files_are_scored_against_a_data_file(tmp_path, dev_file, content):
    (tmp_path / "predictions").write_text(content, encoding="utf-8")
    result = score_files("rte", dev_file, tmp_path / "predictions")
    assert (result["task"], result["accuracy"], result["examples"], result["unknown"]) == ("rte", 50.0, 2, 0)
    assert len(result["data_sha256"]) == len(result["predictions_sha256"]) == 64


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("index\tprediction\n5\tyes\n", r"predictions:2: prediction 'yes', expected one of entailment"),
        ("index\tprediction\n5\tentailment\n5\tentailment\n", r"predictions:3: the id '5' occurs twice"),
        ("index\tprediction\n5\n", r"predictions:2: 1 columns, expected 2"),
        ("5\tentailment\n", r"predictions:1: found 5, entailment; expected prediction, and id or index"),
        ("index\tprediction\n5\tentailment\n", r"predictions: rte: no prediction for example '6'"),
        ("index\tprediction\n0\tentailment\n", r"none of its ids is in .*dev.tsv"),
        ("", r"none of its ids is in"),
        ('{"id": "5"}\n', r"predictions:1: found id; expected prediction, and id or index"),
        ('{"id": "5", "prediction": "entailment"}\n{"id"\n', r"predictions:2: not valid JSON"),
        ('{"id": "5", "prediction": 1}\n', r"predictions:1: prediction '1', expected one of entailment"),
        ('{"id": "5", "prediction": 1.5}\n', r"predictions:1: prediction 1.5, expected a text"),
    ],
)
def test_prediction_file_that_does_not_fit_is_refused(tmp_path, dev_file, content, message):
    (tmp_path / "predictions").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        score_files("rte", dev_file, tmp_path / "predictions")


def test_label_that_is_a_number_may_be_predicted_as_one(tmp_path):
    (tmp_path / "dev.tsv").write_text("sentence\tlabel\na\t0\nb\t1\n", encoding="utf-8")
    (tmp_path / "p").write_text('{"id": 0, "prediction": 0}\n{"id": 1, "prediction": "0"}\n', encoding="utf-8")
    assert score_files("sst2", tmp_path / "dev.tsv", tmp_path / "p")["accuracy"] == 50.0


def test_predictions_for_other_examples_are_counted(tmp_path, dev_file):
    (tmp_path / "p").write_text("index\tprediction\n5\tentailment\n6\tentailment\n7\tentailment\n", encoding="utf-8")
    result = score_files("rte", dev_file, tmp_path / "p")
    assert (result["accuracy"], result["examples"], result["unknown"]) == (50.0, 2, 1)


def test_numbers_and_endings_are_read_from_tables(tmp_path):
    stsb = tmp_path / "dev.tsv"
    stsb.write_text("index\tsentence1\tsentence2\tscore\n0\ta\tb\t1\n1\ta\tb\t2\n2\ta\tb\t5\n", encoding="utf-8")
    (tmp_path / "p").write_text("index\tprediction\n0\t1.5\n1\t1.4\n2\t4\n", encoding="utf-8")
    assert score_files("stsb", stsb, tmp_path / "p")["spearman"] == pytest.approx(50.0)
    (tmp_path / "p").write_text("index\tprediction\n0\tinf\n1\t1\n2\t4\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"p:2: prediction 'inf', expected a number"):
        score_files("stsb", stsb, tmp_path / "p")
    swag = tmp_path / "val.csv"
    swag.write_text(",sent1,sent2,ending0,ending1,ending2,ending3,label\n4,A,B,a,b,c,d,2\n", encoding="utf-8")
    (tmp_path / "p").write_text("index\tprediction\n4\t2\n", encoding="utf-8")
    assert score_files("swag", swag, tmp_path / "p")["accuracy"] == 100.0
    (tmp_path / "p").write_text("index\tprediction\n4\t4\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"example '4' has the prediction 4, expected the index of an ending, 0 to 3"):
        score_files("swag", swag, tmp_path / "p")


def test_correlation_of_tiny_differences_is_finite():
    assert math.isfinite(glue.pearson([1.0, 1.0 + 1e-16, 2.0], [1e-300, 2e-300, 3e-300]))


def test_saved_dataset_and_parquet_of_the_hub_are_scored(tmp_path):
    table = pa.table({"sentence": ["a", "b"], "label": [1, 0], "idx": [7, 5]})
    pq.write_table(table, tmp_path / "validation.parquet")
    (tmp_path / "saved").mkdir()
    with (
        pa.OSFile(str(tmp_path / "saved" / "data.arrow"), "wb") as stream,
        pa.ipc.new_stream(stream, table.schema) as writer,
    ):
        writer.write_table(table)
    (tmp_path / "saved" / "state.json").write_text('{"_data_files": [{"filename": "data.arrow"}]}')
    (tmp_path / "p").write_text('{"id": "5", "prediction": "0"}\n{"id": "7", "prediction": "0"}\n')
    results = [score_files("sst2", tmp_path / name, tmp_path / "p") for name in ("validation.parquet", "saved")]
    assert [result["accuracy"] for result in results] == [50.0, 50.0]
    assert all(len(result["data_sha256"]) == 64 for result in results)
