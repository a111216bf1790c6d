"""Entity scores against conlleval: its output on a real file, and its rules on random tags."""

import dataclasses
import random
import re

import pytest

from bert_model.kinds import kind_of
from bert_model.kinds.scores import score_files
from bert_model.metrics.ner import chunks, score_tags
from bert_pipeline.errors import InputError
from bert_pipeline.tasks.catalogue import get_task
from bert_pipeline.tasks.example import TaggedExample


def starts(previous, tag):
    """conlleval's startOfChunk for B, I and O."""
    (a, old), (b, new) = (tuple((*t.split("-"), "")[:2]) for t in (previous, tag))
    return b == "B" or (a == "O" and b == "I") or (b != "O" and old != new)


def ends(previous, tag):
    """conlleval's endOfChunk for B, I and O."""
    (a, old), (b, new) = (tuple((*t.split("-"), "")[:2]) for t in (previous, tag))
    return (a != "O" and b in ("B", "O")) or (a != "O" and old != new)


def conlleval_counts(gold, predicted):
    """Walk through two tag sequences as the Perl program does: (found in gold, found in predicted, correct)."""
    in_correct = False
    present = found = correct = 0
    last_gold = last_predicted = "O"
    for a, b in [*zip(gold, predicted), ("O", "O")]:
        if in_correct:
            both_end = ends(last_gold, a) and ends(last_predicted, b)
            if both_end and last_gold.split("-")[1:] == last_predicted.split("-")[1:]:
                in_correct, correct = False, correct + 1
            elif ends(last_gold, a) != ends(last_predicted, b) or a.split("-")[1:] != b.split("-")[1:]:
                in_correct = False
        if starts(last_gold, a) and starts(last_predicted, b) and a.split("-")[1:] == b.split("-")[1:]:
            in_correct = True
        present += starts(last_gold, a)
        found += starts(last_predicted, b)
        last_gold, last_predicted = a, b
    return present, found, correct


def test_counts_equal_conlleval_on_random_tags():
    rng = random.Random(11)
    tags = ["O", "B-X", "I-X", "B-Y", "I-Y"]
    for _ in range(2000):
        gold = [rng.choice(tags) for _ in range(rng.randrange(1, 9))]
        predicted = [tag if rng.random() < 0.7 else rng.choice(tags) for tag in gold]
        present, found, correct = conlleval_counts(gold, predicted)
        a, b = chunks(gold), chunks(predicted)
        assert (len(a), len(b), len(a & b)) == (present, found, correct), (gold, predicted)


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["I-X", "I-X", "B-X"], {(0, 2, "X"), (2, 3, "X")}),
        (["B-X", "I-X", "O", "I-Y"], {(0, 2, "X"), (3, 4, "Y")}),
        (["I-X", "I-Y"], {(0, 1, "X"), (1, 2, "Y")}),
        (["B-X", "B-X"], {(0, 1, "X"), (1, 2, "X")}),
        (["I-a-b", "I-a-b"], {(0, 2, "a-b")}),
        (["B", "I", "B", "O", "I"], {(0, 2, ""), (2, 3, ""), (4, 5, "")}),  # without types
        (["NOUN", "VERB"], set()),  # no entities at all
        (["O"], set()),
        ([], set()),
    ],
)
def test_entities_of_both_schemes(tags, expected):
    assert chunks(tags) == expected


def test_entities_do_not_reach_over_sentences():
    gold, predicted = [["I-X"], ["I-X"]], [["I-X"], ["O"]]
    assert score_tags(gold, predicted) == pytest.approx(
        {"f1": 200 / 3, "precision": 100.0, "recall": 50.0, "accuracy": 50.0}
    )


def test_nothing_found_scores_zero_without_a_fault():
    nothing = {"f1": 0.0, "precision": 0.0, "recall": 0.0}
    assert score_tags([["B-X"]], [["O"]]) == nothing | {"accuracy": 0.0}
    assert score_tags([["O"]], [["O"]]) == nothing | {"accuracy": 100.0}
    examples = [TaggedExample("0", 0, ("a", "b"), ("B-PER", "O"))]
    assert kind_of("ner").baseline([], examples) == nothing | {"accuracy": 50.0}


def test_baseline_of_tags_without_entities_is_the_most_frequent_one():
    task = dataclasses.replace(get_task("ner"), labels=("NN", "VB"), metrics=("accuracy",), main_metric="accuracy")
    train = [TaggedExample("0", 0, ("a", "b", "c"), ("VB", "NN", "VB"))]
    dev = [TaggedExample("1", 1, ("a", "b"), ("VB", "NN")), TaggedExample("2", 1, ("a", "b"), ("NN", "NN"))]
    assert kind_of(task).baseline(train, dev) == {"accuracy": 25.0}
    with pytest.raises(InputError, match="no training examples"):
        kind_of(task).baseline([], dev)


def test_tags_must_match_the_words():
    examples = [TaggedExample("0", 0, ("a", "b"), ("B-PER", "O"))]
    assert kind_of("ner_features").score(examples, {"0": ("I-PER", "O")})["f1"] == 100.0
    with pytest.raises(InputError, match=r"example '0' has 1 predicted tags, expected 2"):
        kind_of("ner").score(examples, {"0": ("O",)})
    with pytest.raises(InputError, match=r"example '0' has 2 predicted tags|example '0' has"):
        kind_of("ner").score(examples, {"0": "OO"})


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "eng.testa"
    path.write_text("-DOCSTART- -X- O O\n\nEU N I I-ORG\nand C O O\nBonn N I I-LOC\n\nPeter N I I-PER\n")
    return path


@pytest.mark.parametrize(
    "content",
    [
        "EU I-ORG I-ORG\nand O O\nBonn I-LOC I-ORG\n\nPeter I-PER I-PER\n",
        "EU B-ORG B-ORG\nand O O\nBonn B-LOC B-ORG\n\nPeter B-PER B-PER\n",
        "EU B-ORG\nand O\nBonn B-ORG\n\nPeter B-PER\n",
        "EU I-ORG\nand O\nBonn I-ORG\n\nPeter I-PER\n",
        '{"id": "0", "prediction": ["B-ORG", "O", "B-ORG"]}\n{"id": "1", "prediction": ["B-PER"]}\n',
    ],
    ids=["conlleval IOB1", "conlleval IOB2", "word and tag", "word and IOB1 tag", "json lines"],
)
def test_prediction_files_are_scored(tmp_path, data, content):
    (tmp_path / "p").write_text(content)
    result = score_files("ner", data, tmp_path / "p")
    assert (result["examples"], result["accuracy"], result["f1"]) == (2, 75.0, pytest.approx(200 / 3))


@pytest.mark.parametrize("single", ["B", "S", "U"])
def test_predictions_of_any_scheme_are_scored(tmp_path, single):
    (tmp_path / "data").write_text(f"Anna {single}-PER\nBoris {single}-PER\n")
    for content in (
        f"Anna {single}-PER {single}-PER\nBoris {single}-PER O\n",
        f"Anna {single}-PER\nBoris O\n",
        f'{{"id": "0", "prediction": ["{single}-PER", "O"]}}\n',
    ):
        (tmp_path / "p").write_text(content)
        result = score_files("ner", tmp_path / "data", tmp_path / "p")
        assert (result["f1"], result["accuracy"]) == (pytest.approx(200 / 3), 50.0)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("EU O\nor O\n", r"p:2: word 'or', expected 'and' as in the data file"),
        ("EU O\nand O\n", r"p: ends 2 words before the data file"),
        ("EU O\nand O\nBonn O\n\nPeter O\nmore O\n", r"p:6: word 'more', expected 'the end of the file'"),
        ("EU O O\nand O\n", r"p:2: 2 columns, expected 3"),
        ("EU O O\nand O O\nBonn I-LOC O\n\nPeter I-PER O\n", r"p: its gold tags .* are not those of the data file"),
        ('{"id": "0", "prediction": "O"}\n', r"p:1: prediction 'O', expected a list of tags"),
        ('{"id": "0", "prediction": ["O"]}\n', r"p: ner: example '0' has 1 predicted tags, expected 3"),
    ],
)
def test_prediction_file_that_does_not_fit_is_refused(tmp_path, data, content, message):
    (tmp_path / "p").write_text(content)
    with pytest.raises(InputError, match=message):
        score_files("ner", data, tmp_path / "p")


@pytest.mark.real_data
def test_scores_equal_conlleval(real_data):
    golden = real_data / "golden"
    sentences = [
        [line.split(" ") for line in block.split("\n")]
        for block in (golden / "conlleval.input.txt").read_text().strip().split("\n\n")
    ]
    gold = [[columns[1] for columns in sentence] for sentence in sentences]
    predicted = [[columns[2] for columns in sentence] for sentence in sentences]
    expected = (golden / "conlleval.expected.txt").read_text()
    words, phrases, found, correct = map(
        int, re.findall(r"processed (\d+) .* with (\d+) .* found: (\d+) .* correct: (\d+)", expected)[0]
    )
    assert sum(map(len, gold)) == words
    scores = score_tags(gold, predicted)
    assert scores["precision"] == pytest.approx(100 * correct / found, abs=1e-9)
    assert scores["recall"] == pytest.approx(100 * correct / phrases, abs=1e-9)
    assert scores["f1"] == pytest.approx(200 * correct / (found + phrases), abs=1e-9)
    assert f"accuracy:  {scores['accuracy']:.2f}%" in expected
    assert f"FB1:  {scores['f1']:.2f}" in expected
    for entity in ("LOC", "MISC", "ORG", "PER"):
        only = [[[tag if tag.endswith(entity) else "O" for tag in tags] for tags in side] for side in (gold, predicted)]
        rates = score_tags(*only)
        line = (
            f"{entity}: precision:  {rates['precision']:.2f}%; recall:  {rates['recall']:.2f}%; "
            f"FB1:  {rates['f1']:.2f}  {sum(len(chunks(tags)) for tags in only[1])}"
        )
        assert line in expected
    result = score_files("ner", real_data / "conll2003" / "eng.testa", golden / "conlleval.input.txt")
    assert {key: result[key] for key in scores} == scores
