"""CoNLL-2003's columns."""

import dataclasses
import json
import random
from pathlib import Path

import pytest

from bert_pipeline.configuration import to_mapping
from bert_pipeline.errors import ConfigurationError, InputError
from bert_pipeline.records import open_source
from bert_pipeline.tasks import ner
from bert_pipeline.tasks.catalogue import TASKS, Columns, get_task
from bert_pipeline.tasks.example import TaggedExample
from bert_pipeline.tasks.ner import documents, to_bioes, to_iob2
from bert_pipeline.tasks.task import is_task_file, load_task_data, read_examples


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
        ("EU I-ORG\nParis X-LOC\n", r"eng.train:2: tag 'X-LOC', expected one of"),
        ("EU I-PART\n", r"eng.train:1: tag 'I-PART', expected one of"),
        ("-DOCSTART- -X- O O\n\n", "no sentences"),
        ("", "no sentences"),
    ],
)
def test_defective_line_is_named_with_found_and_expected(tmp_path, content, message):
    task = dataclasses.replace(TASKS["ner"], labels=(*TASKS["ner"].labels, "B-PART"))  # of one word always
    with pytest.raises(InputError, match=message):
        read_examples(task, write(tmp_path, content))


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


def own_task(**changes):
    options = {"folder": ".", "name": "own", **changes}
    return dataclasses.replace(TASKS["ner"], **options)


def test_columns_of_words_and_tags_may_be_named(tmp_path):
    columns = Columns(text_a="word", label="outer", headerless=("number", "word", "outer", "inner"))
    content = "#\thttp://x\t[2009]\n1\tAnna Maria\tB-PER\tO\n2\t#\tO\tO\n\n1\tRom\tS-LOC\tO\n2\tx\tO\tO\n"
    task = own_task(columns=columns, separator="\t")
    file = tmp_path / "train.tsv"
    file.write_text(content, encoding="utf-8")
    assert [(e.words, e.tags) for e in read_examples(task, file)] == [
        (("Anna Maria", "#"), ("B-PER", "O")),
        (("Rom", "x"), ("B-LOC", "O")),
    ]
    with open_source(file) as source:
        assert is_task_file(task, source)
    file.write_text("1\ta\tX\tO\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"train.tsv:1: tag 'X', expected one of"):
        read_examples(task, file)
    file.write_text("# id = 1\n1 Anna B-PER O\n2 # O O\n", encoding="utf-8")  # a comment with as many fields
    spaced = dataclasses.replace(task, separator="")
    assert [(e.words, e.tags) for e in read_examples(spaced, file)] == [(("Anna", "#"), ("B-PER", "O"))]
    description = {**to_mapping(task), "columns": {"text_a": "token", "headerless": ["a", "b"]}}
    (tmp_path / "own.yaml").write_text(json.dumps(description), encoding="utf-8")
    with pytest.raises(ConfigurationError, match="columns.text_a: found 'token', expected one of columns.headerless"):
        get_task(str(tmp_path / "own.yaml"))


def test_columns_may_be_named_in_the_first_line(tmp_path):
    task, file = own_task(columns=Columns(text_a="token", label="ner")), tmp_path / "train.tsv"
    file.write_text("ner\ttoken\tpos\nB-PER\tAnna\tx\n\nO\tis\tx\n", encoding="utf-8")
    assert [(e.example_id, e.words, e.tags) for e in read_examples(task, file)] == [
        ("0", ("Anna",), ("B-PER",)), ("1", ("is",), ("O",)),
    ]  # fmt: skip
    with open_source(file) as source:
        assert is_task_file(task, source)
    file.write_text("token\tpos\nAnna\tx\n", encoding="utf-8")
    assert [(e.words, e.tags) for e in read_examples(task, file, labeled=None)] == [(("Anna",), None)]
    with pytest.raises(InputError, match=r"train.tsv:1: no column 'ner', which holds the tags"):
        read_examples(task, file)


def test_equal_fields_between_tabs_are_no_header(tmp_path):
    content = "-DOCSTART-\t-X-\tO\tO\n\nEU\tNNP\tB-NP\tB-ORG\n"
    for task in (TASKS["ner"], own_task(columns=Columns(text_a="word", label="tag"))):
        (example,) = read_examples(task, write(tmp_path, content))
        assert (example.words, example.tags) == (("EU",), ("B-ORG",))


def test_columns_of_ids_and_tags_are_found_beside_usual_words(tmp_path):
    task, file = own_task(columns=Columns(label="mentions", index="meta.uid")), tmp_path / "train.jsonl"
    rows = [{"tokens": ["Anna"], "mentions": ["B-PER"], "meta": {"uid": "k9"}, "id": 3}]
    rows.append({"text": "Anna!", "mentions": [[0, 4, "PER"]], "meta": {"uid": "k7"}})
    for row, tags in zip(rows, (("B-PER",), ("B-PER", "O"))):
        file.write_text(json.dumps(row), encoding="utf-8")
        (example,) = read_examples(task, file)
        assert (example.example_id, example.tags) == (row["meta"]["uid"], tags)
    file.write_text(json.dumps({"tokens": ["Anna"], "ner_tags": ["B-PER"], "id": 3}), encoding="utf-8")
    with pytest.raises(InputError, match=r"no column 'meta.uid', which holds the ids"):
        read_examples(task, file)
    assert read_examples(own_task(), file)[0].example_id == "3"


def test_a_word_a_row_is_a_sentence_by_its_id(tmp_path):
    task = own_task(columns=Columns(text_a="Word", label="Tag", index="Sentence #"))
    file = tmp_path / "train.csv"
    rows = 'Sentence #,Word,POS,Tag\nSentence: 1,Anna,NNP,B-PER\n,"a, b",X,O\nSentence: 2,Rome,NNP,U-LOC\n'
    file.write_text(rows, encoding="utf-8")
    assert [(e.example_id, e.words, e.tags) for e in read_examples(task, file)] == [
        ("Sentence: 1", ("Anna", "a, b"), ("B-PER", "O")),
        ("Sentence: 2", ("Rome",), ("B-LOC",)),
    ]
    with open_source(file) as source:
        assert is_task_file(task, source)
    assert [e.tags for e in read_examples(task, file, labeled=False)] == [None, None]
    spaced = file.with_suffix(".tsv")
    spaced.write_text("Sentence #\tWord\tTag\n1\tAnna\tB-PER\n\n2\tRome\tB-LOC\n\n", encoding="utf-8")
    assert [(e.example_id, e.tags) for e in read_examples(task, spaced)] == [("1", ("B-PER",)), ("2", ("B-LOC",))]
    file.write_text(rows + "Sentence: 3,x,X,NO\n,y,X,O\nSentence: 4,z,X,O\n", encoding="utf-8")
    errors = []
    assert [e.example_id[-1] for e in read_examples(task, file, on_error=errors.append)] == ["1", "2", "4"]
    assert [str(error).partition(": ")[0] for error in errors] == [f"{file}:5"]
    with pytest.raises(
        InputError, match=r"no column 'sentence1' \(found: Sentence #, Word, POS, Tag\), expected a word"
    ):
        read_examples(own_task(), file)


def test_spans_of_characters_become_tags_of_words(tmp_path):
    file = tmp_path / "train.jsonl"
    text = "Anna Berg, of Rome-Ost."
    doccano = {"id": 7, "text": text, "label": [[0, 9, "PER"], [14, 17, "LOC"], [5, 9, "PER"]]}
    spans = [{"start": 0, "end": 9, "label": "PER"}]
    prodigy = {"text": text, "tokens": [{"text": "Anna", "start": 0}], "spans": spans}
    for row, tags in ((doccano, ["B-PER", "I-PER", "O", "O", "B-LOC"]), (prodigy, ["B-PER", "I-PER", "O", "O", "O"])):
        file.write_text(json.dumps(row), encoding="utf-8")
        counts = {}
        (example,) = read_examples(TASKS["ner"], file, counts=counts)
        assert example.words == ("Anna", "Berg", ",", "of", "Rome", "-", "Ost", ".")
        assert list(example.tags) == [*tags, "O", "O", "O"]
        assert len(counts) == (2 if row is doccano else 0)
    rejected = {**prodigy, "answer": "reject"}
    file.write_text(f"{json.dumps(rejected)}\n{json.dumps(prodigy)}\n", encoding="utf-8")
    assert [e.example_id for e in read_examples(TASKS["ner"], file, counts=counts)] == ["1"]
    assert counts == {"texts whose entities their annotator did not accept": 1}
    for bad in ([0, 99, "PER"], [3, 3, "PER"], ["PER"], {"start": 1}):
        file.write_text(json.dumps({"text": text, "label": [bad]}), encoding="utf-8")
        with pytest.raises(InputError, match=r"train.jsonl:1: label has .*, expected start, end and type of a span"):
            read_examples(TASKS["ner"], file)


def test_bioes_and_back():
    labels = TASKS["ner"].labels
    for bioes in ("S-PER B-PER E-PER O B-LOC I-LOC E-LOC S-LOC", "S-PER", "O", "B-ORG E-ORG B-ORG E-ORG"):
        assert to_bioes(to_iob2(bioes.split(), labels)) == bioes.split()
    assert to_iob2(["U-PER", "B-LOC", "L-LOC", "U-LOC"], labels) == ["B-PER", "B-LOC", "I-LOC", "B-LOC"]
