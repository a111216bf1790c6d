"""`bert task init` describes a training file so that a fine-tuning reads it, or asks for what it cannot tell."""

import json
import shutil
from pathlib import Path

import pytest
import yaml

from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.tasks.catalogue import get_task
from bert_pipeline.tasks.describe import describe_task
from bert_pipeline.tasks.task import load_task_data

DATA = Path(__file__).parents[2] / "data" / "tasks"
EXPECTED = yaml.safe_load((DATA / "described.yaml").read_text(encoding="utf-8"))
ADJECTIVES = ("schön", "gut", "toll", "schlecht", "mies", "öde")
LONG = [f"der Film {number} ist {adjective}, wirklich" for number, adjective in enumerate(ADJECTIVES)]
SIDES = ["lob"] * 3 + ["tadel"] * 3


def lines_of(name):
    return (DATA / "described" / name).read_text(encoding="utf-8").splitlines()


def write(folder, name, lines):
    (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder / name


@pytest.mark.parametrize("name", EXPECTED)
def test_description_tells_the_file_and_is_read_by_a_finetuning(name, tmp_path):
    output, lines = describe_task(shutil.copy(DATA / "described" / name, tmp_path / name))
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
    output, _ = describe_task(write(tmp_path, train, lines_of("squad.json")))
    assert output.name == train.replace(".json", ".yaml")
    assert get_task(str(output)).dev_files == {"dev": dev}


def test_white_space_around_labels_makes_no_others(tmp_path):
    rows = [
        f"{text.replace(',', '')},{' ' * (number % 2)}{side}" for number, (text, side) in enumerate(zip(LONG, SIDES))
    ]
    output, lines = describe_task(write(tmp_path, "train.csv", ["text,label", *rows]))
    assert lines[-1].endswith(" --dev-fraction 0.2")  # there is no dev.csv
    task = get_task(str(output))
    assert task.labels == ("lob", "tadel")
    assert [example.label for example in load_task_data(task, tmp_path, 0.3).train][:2] == ["lob", "lob"]


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
    assert lines[-1] == f"next: bert finetune '{output}' --data '{folder}' --model MODEL --output DIR"
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
    output, _ = describe_task(write(tmp_path, "objects.jsonl", lines_of("objects.jsonl")), kind="regression")
    assert (get_task(str(output)).kind, get_task(str(output)).label_range) == ("regression", (1.0, 3.0))


def test_range_and_classes_are_those_of_dev_too(tmp_path):
    rows = [f'"{text}",{number}.25,{side}' for number, (text, side) in enumerate(zip(LONG, SIDES), start=1)]
    train = write(tmp_path, "train.csv", ["text,price,side", *rows])
    write(tmp_path, "dev.csv", ["text,price,side", '"ein Film, der geht",9.5,egal'])
    numbers, _ = describe_task(train, tmp_path / "numbers.yaml", labels=["price"])
    assert get_task(str(numbers)).label_range == (1.0, 10.0)
    classes, _ = describe_task(train, tmp_path / "classes.yaml", labels=["side"])
    assert get_task(str(classes)).labels == ("egal", "lob", "tadel")


def test_nothing_is_overwritten_and_no_row_taken_for_a_header(tmp_path):
    file = write(tmp_path, "flags.csv", lines_of("flags.csv"))
    output, _ = describe_task(file)
    written = output.read_bytes()
    with pytest.raises(UsageError, match="flags.yaml: exists already"):
        describe_task(file)
    assert output.read_bytes() == written
    titled = [f"{line}\t{text}" for line, text in zip(lines_of("bare.tsv"), reversed(LONG))]
    with pytest.raises(UsageError, match="the text. Found column1, column2, column3; name it"):  # not a pair by name
        describe_task(write(tmp_path, "bare.tsv", titled))
    wrong = write(tmp_path, "wrong.jsonl", [*lines_of("objects.jsonl"), '{"review": "ein Film", "stars": null}'])
    with pytest.raises(InputError, match="wrong.jsonl:7: label None"):
        describe_task(wrong)
    assert not {"bare.yaml", "wrong.yaml"} & {path.name for path in tmp_path.iterdir()}
