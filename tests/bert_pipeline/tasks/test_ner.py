"""CoNLL-2003's columns."""

import dataclasses
import random
from pathlib import Path

import pytest

from bert_pipeline.errors import InputError
from bert_pipeline.tasks import ner
from bert_pipeline.tasks.catalogue import TASKS
from bert_pipeline.tasks.example import TaggedExample
from bert_pipeline.tasks.ner import documents, to_iob2
from bert_pipeline.tasks.task import load_task_data, read_examples


def write(folder: Path, content: str) -> Path:
    path = folder / "eng.train"
    path.write_text(content, encoding="utf-8")
    return path


IOB1 = """-DOCSTART- -X- O O

EU NNP I-NP I-ORG
rejects VBZ I-VP O
Boris NNP I-NP I-PER
Becker NNP I-NP I-PER
Steffi NNP I-NP B-PER

Peter NNP I-NP I-PER

-DOCSTART- -X- O O

Berlin NNP I-NP I-LOC
EU NNP I-NP I-ORG"""


def test_documents_sentences_and_tags_are_read_as_iob2(tmp_path):
    examples = read_examples(TASKS["ner"], write(tmp_path, IOB1))
    assert examples == [
        TaggedExample(
            "0", 0, ("EU", "rejects", "Boris", "Becker", "Steffi"), ("B-ORG", "O", "B-PER", "I-PER", "B-PER")
        ),
        TaggedExample("1", 0, ("Peter",), ("B-PER",)),
        TaggedExample("2", 1, ("Berlin", "EU"), ("B-LOC", "B-ORG")),
    ]
    assert [len(document) for document in documents(examples)] == [2, 1]


def test_both_schemes_of_the_same_sentences_read_the_same(tmp_path):
    iob2 = IOB1.replace("EU NNP I-NP I-ORG", "EU NNP I-NP B-ORG").replace("Boris NNP I-NP I-", "Boris NNP I-NP B-")
    iob2 = iob2.replace("Peter NNP I-NP I-", "Peter NNP I-NP B-").replace("Berlin NNP I-NP I-", "Berlin NNP I-NP B-")
    assert iob2 != IOB1
    (tmp_path / "other").mkdir()
    one = read_examples(TASKS["ner"], write(tmp_path, IOB1))
    two = read_examples(TASKS["ner"], write(tmp_path / "other", iob2))
    assert one == two


def test_iob1_converts_to_iob2():
    iob1 = ["I-PER", "I-PER", "B-PER", "O", "I-LOC", "I-ORG"]
    assert to_iob2(iob1, TASKS["ner"].labels) == ["B-PER", "I-PER", "B-PER", "O", "B-LOC", "B-ORG"]


def test_iob2_is_unchanged():
    rng = random.Random(7)
    for _ in range(200):
        tags = to_iob2([rng.choice(TASKS["ner"].labels) for _ in range(rng.randrange(12))], TASKS["ner"].labels)
        assert to_iob2(tags, TASKS["ner"].labels) == tags


def test_tags_that_name_no_entity_stay_as_they_are(tmp_path):
    tags = ("NN", "-LRB-", "-LRB-", "I-J", "B-K", "B-K", "I-K")
    task = dataclasses.replace(TASKS["ner"], labels=("NN", "-LRB-", "I-J", "B-K", "I-K"))
    (example,) = read_examples(task, write(tmp_path, "".join(f"word {tag}\n" for tag in tags)))
    assert example.tags == tags


def test_docstart_may_follow_its_document(tmp_path):
    content = "a O\n\n-DOCSTART- O\n\nb O\n\nc O\n\n-DOCSTART- O\n"
    examples = read_examples(TASKS["ner"], write(tmp_path, content))
    assert [example.document for example in examples] == [0, 1, 1]


def test_without_marks_that_tell_documents_apart_sentences_have_none(tmp_path, monkeypatch):
    sentences = "a O\n\nb O\n\nc O\n\n"
    assert [e.document for e in read_examples(TASKS["ner"], write(tmp_path, sentences))] == [None] * 3
    # A stream of sentences waits for the first mark, but not without end.
    monkeypatch.setattr(ner, "LEADING_SENTENCES", 2)
    examples = read_examples(TASKS["ner"], write(tmp_path, f"{sentences}-DOCSTART- O\n\nd O\n\n-DOCSTART- O\n\ne O\n"))
    assert [e.document for e in examples] == [None, None, None, 0, 1]
    monkeypatch.undo()
    examples = read_examples(TASKS["ner"], write(tmp_path, f"{sentences}-DOCSTART- O\n\nd O\n\n-DOCSTART- O\n\ne O\n"))
    assert [e.document for e in examples] == [0, 0, 0, 1, 2]


@pytest.mark.parametrize("first", ["", "-DOCSTART- -X- O O\n\n"])
def test_one_file_without_several_documents_is_split_by_its_sentences(tmp_path, first):
    words = [f"w{number // 2}" for number in range(40)]  # every sentence twice
    file = write(tmp_path, first + "".join(f"{word} O\n\n" for word in words))
    data = load_task_data("ner", file, dev_fraction=0.25)
    assert len(data.dev["dev"]) == 10
    assert {example.document for example in (*data.train, *data.dev["dev"])} == {None}
    assert not data.repeated, "equal sentences are on one side"


def test_no_break_space_is_part_of_a_word(tmp_path):
    content = "10\u00a0000\tO\nParis\tB-LOC\n"
    (example,) = read_examples(TASKS["ner"], write(tmp_path, content))
    assert example.words == ("10\u00a0000", "Paris")


def test_words_without_tags_are_read_when_tags_are_not_required(tmp_path):
    file = write(tmp_path, "Paris\nis\n\nbig\n")
    examples = read_examples(TASKS["ner"], file, labeled=None)
    assert [(example.words, example.tags) for example in examples] == [(("Paris", "is"), None), (("big",), None)]
    with pytest.raises(InputError, match=r"eng.train:1: 1 column, expected a word and its tag"):
        read_examples(TASKS["ner"], file)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("EU NNP I-NP I-ORG\nrejects VBZ O\n", r"eng.train:2: 3 columns, expected 4"),
        ("EU I-ORG\n\nParis I-CITY\n", r"eng.train:3: tag 'I-CITY', expected one of O, B-PER"),
        ("EU I-ORG\nParis LOC\n", r"eng.train:2: tag 'LOC', expected one of"),
        ("EU I-ORG\nParis E-LOC\n", r"eng.train:2: tag 'E-LOC', expected one of"),
        ("-DOCSTART- -X- O O\n\n", "no sentences"),
        ("", "no sentences"),
    ],
)
def test_defective_line_is_named_with_found_and_expected(tmp_path, content, message):
    with pytest.raises(InputError, match=message):
        read_examples(TASKS["ner"], write(tmp_path, content))


@pytest.mark.real_data
def test_real_file_has_the_published_counts(real_data):
    examples = read_examples(TASKS["ner"], real_data / "conll2003" / "eng.testa")
    assert len({example.document for example in examples}) == 216
    assert sum(len(example.words) for example in examples) == 51362
    starts = [tag for example in examples for tag in example.tags if tag.startswith("B-")]
    assert len(starts) == 5942
    assert {kind: starts.count(f"B-{kind}") for kind in ("PER", "ORG", "LOC", "MISC")} == {
        "PER": 1842, "ORG": 1341, "LOC": 1837, "MISC": 922,
    }  # fmt: skip
