"""`bert task init` describes a training file so that a fine-tuning reads it, or asks for what it cannot tell."""

import json
from pathlib import Path

import pytest
import yaml

from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.tasks.catalogue import get_task
from bert_pipeline.tasks.describe import describe_task
from bert_pipeline.tasks.task import load_task_data

ADJECTIVES = ("schön", "gut", "toll", "schlecht", "mies", "öde")
LONG = [f"der Film {number} ist {adjective}, wirklich" for number, adjective in enumerate(ADJECTIVES)]
SIDES = ["lob"] * 3 + ["tadel"] * 3
ANSWERS: list[dict[str, list[object]]] = [{"text": [], "answer_start": []}, {"text": ["Film"], "answer_start": [4]}]
ARTICLES = [
    {
        "title": adjective,
        "paragraphs": [{"context": text, "qas": [{"id": adjective, "question": "Wie?", "answers": [], **more}]}],
    }
    for adjective, text, more in zip(
        ADJECTIVES,
        LONG,
        [{"answers": [{"text": "Film", "answer_start": 4}], "is_impossible": False}, {"is_impossible": True}] * 3,
    )
]
LINES = {
    "semicolons.csv": ["ID;Text;label;Jahr", *(f"r{n};{LONG[n]};{SIDES[n]};{2000 + n}" for n in range(6))],
    "objects.jsonl": [json.dumps({"review": LONG[n], "stars": n % 3 + 1}) for n in range(6)],
    "bare.tsv": [f"{LONG[n]}\t{SIDES[n]}" for n in range(6)],
    "bare.csv": [f'{SIDES[n]},"{LONG[n]}"' for n in range(6)],
    "unnamed.csv": ["v1,v2,,", *(f'{SIDES[n]},"{LONG[n]}",,' for n in range(6))],
    "pairs.csv": [
        "sentence1,sentence2,score,genre",
        *(f'"{LONG[n]}","{LONG[-n]}",{n * 0.9:.1f},{SIDES[n]}' for n in range(6)),
    ],
    "flags.csv": ["text,praise,blame,loud,none", *(f'"{LONG[n]}",{n // 3},{1 - n // 3},{n % 2},0' for n in range(6))],
    "lists.jsonl": [json.dumps({"text": LONG[n], "labels": ["S-Bahn", "Bus"][: n % 2 + 1]}) for n in range(6)],
    "floats.jsonl": [json.dumps({"text": LONG[n], "label": float(n % 2)}) for n in range(6)],
    "spans.jsonl": [json.dumps({"text": f"Anna sees Ulm{n}", "label": [[0, 4, "PER"]]}) for n in range(6)],
    "words.jsonl": [json.dumps({"tokens": ["Anna", f"s{n}"], "ner_tags": ["B-PER", "O"]}) for n in range(6)],
    "squad.json": [json.dumps({"version": "v2.0", "data": ARTICLES}, indent=1)],
    "questions.jsonl": [
        json.dumps({"id": f"q{n}", "context": LONG[n], "question": "Was?", "answers": ANSWERS[n % 2]}) for n in range(6)
    ],
    "endings.jsonl": [json.dumps({"context": LONG[n], "endings": [*SIDES[2:4]], "label": n % 2}) for n in range(6)],
    "quoted.csv": ['"Text";"label"', *(f'"{LONG[n]}; ja";"{SIDES[n]}"' for n in range(6))],
    "excel.csv": ["sep=;", " Text ; label", *(f"{LONG[n]};{SIDES[n]}" for n in range(6))],
    "tags.txt": [line for n in range(6) for line in ("Anna B-PER", "sees O", f"Ulm{n} B-LOC", "")],
}
EXPECTED = yaml.safe_load((Path(__file__).parents[2] / "data" / "tasks" / "described.yaml").read_text(encoding="utf-8"))


def write(folder, name, lines=None):
    encoding = "latin-1" if name == "semicolons.csv" else "utf-8"
    file = folder / name
    file.write_bytes("".join(f"{line}\n" for line in lines or LINES[name]).encode(encoding))
    return file


@pytest.mark.parametrize("name", LINES)
def test_description_tells_the_file_and_is_read_by_a_finetuning(name, tmp_path):
    output, lines = describe_task(write(tmp_path, name))
    stem = name.partition(".")[0]
    assert output == tmp_path / f"{stem}.yaml"
    written = yaml.safe_load(output.read_text(encoding="utf-8"))
    description, comments = EXPECTED[name]["description"], EXPECTED[name].get("comments", [])
    own = {key: value for key, value in written.items() if key in description or key in ("pair", "separator")}
    assert own == description
    assert (written["name"], written["train_file"]) == (stem, name)
    assert all(any(comment in line for line in lines) for comment in comments)
    assert output.read_text(encoding="utf-8").startswith("".join(f"# {line}\n" for line in lines))
    task = get_task(str(output))
    assert task.main_metric in task.metrics
    data = load_task_data(task, tmp_path, 0.3)
    assert len(data.train) + len(data.dev["dev"]) == 6
    assert data.train[0].gold is not None


@pytest.mark.parametrize(
    ("train", "dev"),
    [("train-v2.0.json", "dev-v2.0.json"), ("own.v2.json", "dev.json"), ("de_train.json", "de_dev.json")],
)
def test_dev_file_has_the_name_of_the_training_file(train, dev, tmp_path):
    output, _ = describe_task(write(tmp_path, train, LINES["squad.json"]))
    assert output.name == train.replace(".json", ".yaml")
    assert get_task(str(output)).dev_files == {"dev": dev}


def test_dev_file_beside_it_is_described_and_counted_too(tmp_path):
    folder = tmp_path / "2024 Film-Urteile"
    folder.mkdir()
    rows = [
        json.dumps({"text": text, "label": side}) for text, side in zip([*LONG, " ", LONG[0]], [*SIDES, "lob", "lob"])
    ]
    train, _ = write(folder, "train.jsonl", rows), write(folder, "dev.jsonl", rows[:2])
    output, lines = describe_task(train)
    assert output == folder / "2024 Film-Urteile.yaml"
    assert f"train {train}, 8 rows: 62 % lob, 38 % tadel, 1 text empty, 1 repeated" in lines
    assert any("dev: 2 of its examples are in the training set too" in line for line in lines)
    assert get_task(str(output)).name == "task_2024_film_urteile"
    assert len(load_task_data(get_task(str(output)), folder).dev["dev"]) == 2


@pytest.mark.parametrize(
    ("header", "question", "answers", "expected"),
    [
        ("title,body,label", "the text? Found title, body, label; name it with --text", {"texts": ["body"]}, ["body"]),
        ("title,body,label", "with --text, those of a pair", {"texts": ["title", "body"]}, ["title", "body"]),
        (
            "queue,body,agent",
            "the label? Found queue, body, agent; name it with --label",
            {"labels": ["agent"]},
            ["body"],
        ),
    ],
)
def test_what_the_columns_leave_open_is_asked_for(header, question, answers, expected, tmp_path):
    first, second = (LONG, SIDES) if header.startswith("title") else (SIDES, SIDES[::-1])
    lines = [header, *(f'"{a}","{b}",{c}' for a, b, c in zip(first, LONG[::-1], second))]
    file = write(tmp_path, "train.csv", lines)
    with pytest.raises(UsageError, match="which column holds") as raised:
        describe_task(file, tmp_path / "own.yaml")
    assert question in str(raised.value)
    assert [path.name for path in tmp_path.iterdir()] == ["train.csv"]
    task = get_task(str(describe_task(file, tmp_path / "own.yaml", **answers)[0]))
    assert list(task.columns.texts) == expected
    assert task.columns.label == answers.get("labels", ["label"])[0]


def test_numbers_are_amounts_on_request(tmp_path):
    output, _ = describe_task(write(tmp_path, "objects.jsonl"), kind="regression")
    assert (get_task(str(output)).kind, get_task(str(output)).label_range) == ("regression", (1.0, 3.0))


def test_nothing_is_overwritten_and_no_row_taken_for_a_header(tmp_path):
    file = write(tmp_path, "flags.csv")
    output, _ = describe_task(file)
    written = output.read_bytes()
    with pytest.raises(UsageError, match="flags.yaml: exists already"):
        describe_task(file)
    assert output.read_bytes() == written
    titled = [f"{line}\t{text}" for line, text in zip(LINES["bare.tsv"], reversed(LONG))]
    with pytest.raises(UsageError, match="the text. Found column1, column2, column3; name it"):  # not a pair by name
        describe_task(write(tmp_path, "bare.tsv", titled))
    wrong = write(tmp_path, "wrong.jsonl", [*LINES["objects.jsonl"], '{"review": "ein Film", "stars": null}'])
    with pytest.raises(InputError, match="wrong.jsonl:7: label None"):
        describe_task(wrong)
    assert not {"bare.yaml", "wrong.yaml"} & {path.name for path in tmp_path.iterdir()}
