"""The `bert` command: parsing, and errors as one sentence with an exit code."""

import errno
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny_tasks

from bert_model.cli import build_parser, main, parse, split_beam_options


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BERT_HOME", str(tmp_path / "home"))
    (tmp_path / "prose.xml").write_text("Call me Ishmael. Some years ago…\n")
    (tmp_path / "out").mkdir()
    return tmp_path


@pytest.mark.parametrize(
    ("command", "exit_code", "message"),
    [
        ("corpus absent.xml.bz2 --output out/corpus", 1, "absent.xml.bz2"),
        ("corpus prose.xml --output out/corpus", 1, "prose.xml"),
        ("vocab absent --output out/vocab", 1, "absent: no manifest.json"),
        ("instances absent --vocab absent --output out/instances", 1, "absent: no manifest.json"),
        ("instances absent --output out/instances", 2, "--vocab DIR is missing"),
        ("vocab absent --output out/v --vocab-size 90", 2, "--vocab-size 90: 5 special tokens and --num-unused 99"),
        ("vocab absent --output out/v --min-count 0", 2, "--min-count: found 0, expected more than 0"),
        ("corpus prose.xml --output out/c --language klingon", 2, "found 'klingon', expected a code of a language"),
        ("corpus prose.xml --output out/c --held-out-per-mille 999", 2, "--held-out-per-mille: found 999"),
        ("pretrain --config absent.yaml --output out/training", 2, "absent.yaml"),
        ("pretrain --config lapdog --output out/training", 2, "lapdog"),
        ("pretrain --config laptop sede=7 --output out/training", 2, "unknown key 'sede' (did you mean 'seed'?)"),
        ("finetune sst3 --data . --model absent --output out/model", 2, "unknown task 'sst3' (did you mean 'sst2'?)"),
        ("finetune sst2 epoch=[3] --data . --model m --output out/model", 2, "did you mean 'epochs'?"),
        ("finetune ner_features head=bilstm --data . --model m --output out/model", 2, "head has no effect on frozen"),
        (
            "finetune squad1 stride=8 --data . --model m --output out/model",
            2,
            "stride has no effect, expected it with clas",
        ),
        ("finetune sst2 --data absent --model m --output out/model", 1, "absent"),
        ("predict sst3 --model absent", 2, "unknown task 'sst3'"),
        ("score sst2 --data absent.tsv --predictions absent.json", 1, "absent"),
        ("promote ../etc", 2, "../etc"),
        ("export . --output out/model.onnx", 1, "config.json: cannot be read"),
    ],
)
def test_bad_usage_and_input_are_one_sentence_and_write_nothing(workplace, capfd, command, exit_code, message):
    assert main(command.split()) == exit_code
    error = capfd.readouterr().err.strip()
    assert message in error
    assert error.startswith(f"bert {command.split()[0]}: ")
    assert "\n" not in error
    assert "Traceback" not in error
    assert list((workplace / "out").iterdir()) == []


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_disk_is_one_sentence_with_the_path_and_the_free_bytes(workplace, capfd, monkeypatch, number):
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))  # as of `write`, which names no file

    monkeypatch.setattr("pyarrow.parquet.ParquetWriter", fail)
    tiny_tasks.make_model(workplace / "model")
    (workplace / "in.txt").write_text("the film\n")
    assert (
        main(
            ["features", "--layers", "-1", "--model", "model", "--input", "in.txt", "--output", "out/features.parquet"]
        )
        == 1
    )
    error = capfd.readouterr().err.strip().splitlines()[-1]
    assert re.match(
        rf"bert features: out/features.parquet: cannot be written: {os.strerror(number)}; [\d,]+ bytes are free", error
    )
    assert list((workplace / "out").iterdir()) == []


@pytest.mark.parametrize(("filename", "place"), [(None, ""), ("in.txt", "in.txt: ")])
def test_error_of_the_operating_system_is_one_sentence(workplace, capfd, monkeypatch, filename, place):
    def fail(*_: object, **__: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), filename)

    monkeypatch.setattr("bert_model.inference.features.write_features", fail)
    tiny_tasks.make_model(workplace / "model")
    assert main(["features", "--model", "model", "--input", "in.txt", "--output", "out/features.parquet"]) == 1
    assert capfd.readouterr().err.strip().splitlines()[-1] == f"bert features: {place}{os.strerror(errno.EIO)}"


@pytest.mark.parametrize(
    "command",
    [
        "predict sst2 --model absent --output",
        "features --model absent --input absent --output",
        "attention text --model absent --output",
        "export absent --output",
        "exam absent --corpus absent --output",
        "submission absent --output",
    ],
)
@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("out", "out: is a directory, expected the name of a file to write"),
        ("prose.xml/file", "prose.xml: exists and is not a directory; give another path"),
        ("/proc/file", "/proc/file: cannot be written: /proc may not be written"),
    ],
)
def test_file_that_cannot_be_written_is_refused_before_the_work(
    workplace, capfd, monkeypatch, command, output, message
):
    monkeypatch.setattr(os, "access", lambda path, _: str(path) != "/proc")
    assert main([*command.split(), output]) == 1
    assert message in capfd.readouterr().err


def test_finetune_says_which_questions_cannot_be_trained_on(workplace, capfd, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for file, wrong in (("train-v1.1.json", 7), ("dev-v1.1.json", 0)):
        questions = [
            {"id": str(n), "question": "Who?", "answers": [{"text": "dog" if n < wrong else "cat", "answer_start": 2}]}
            for n in range(8)
        ]
        data = [{"title": "T", "paragraphs": [{"context": "A cat sat.", "qas": questions}]}]
        Path(file).write_text(json.dumps({"version": "1.1", "data": data}))
    assert main(["finetune", "squad1", "--data", ".", "--model", "someone/absent", "--output", "out/model"]) == 2
    assert "squad1: train-v1.1.json: questions without a usable answer: 7" in capfd.readouterr().err


@pytest.mark.parametrize(
    "command",
    [
        "predict mlm --model model --input in.txt --output out/answers.jsonl",
        "features --model model --layers -1 --input in.txt --output out/features.parquet",
        "attention --model model film --output out/page.html",
    ],
)
def test_commands_log_what_they_use_of_a_model(workplace, caplog, command):
    tiny_tasks.make_model(workplace / "model")
    (workplace / "in.txt").write_text("the [MASK] was fine .\n")
    caplog.set_level("INFO")
    assert main(command.split()) == 0
    assert [line.partition(" tensors used, ")[0] for line in caplog.messages] in (["model: 30"], ["model: 23"])


def test_debug_shows_the_traceback(workplace):
    with pytest.raises(Exception, match="unknown task"):
        main(["--debug", "predict", "sst3", "--model", "absent"])


def test_words_after_two_dashes_are_beam_options():
    assert split_beam_options(["corpus", "x", "--", "--workers", "4"]) == (["corpus", "x"], ["--workers", "4"])
    assert split_beam_options(["models"]) == (["models"], [])


def test_beam_options_are_refused_by_other_commands(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["models", "--", "--workers", "4"])
    assert stopped.value.code == 2
    assert "takes no Beam options" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["finetune", "rte", "epochs=[2]", "seeds=[1]", "--data", "d", "--model", "m", "--output", "o"],
        ["finetune", "rte", "--data", "d", "epochs=[2]", "--model", "m", "--output", "o", "seeds=[1]"],
        ["finetune", "--data", "d", "--model", "m", "--output", "o", "rte", "epochs=[2]", "seeds=[1]"],
    ],
)
def test_assignments_are_accepted_in_any_position(words):
    arguments = parse(build_parser(), words)
    assert (arguments.task, arguments.assignments) == ("rte", ["epochs=[2]", "seeds=[1]"])


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["finetune", "ner", "--settings"], "seeds=[1, 2, 3, 4, 5]\n"),
        (["finetune", "--settings", "squad1", "epochs=[2.0]"], "max_seq_length=384\n"),
        (["finetune", "--settings"], "max_seq_length=128\n"),
        (["vocab", "--settings", "vocab_size=99", "num_unused=3"], "vocab_size=99\n"),
        (["promote", "--settings", "margin=2"], "margin=2.0\n"),
        (["pretrain", "--config", "laptop", "--settings", "seed=7"], "phases.1.max_seq_length=512\n"),
    ],
)
def test_settings_are_those_of_the_command_line(capsys, words, expected):
    assert main(words) == 0
    assert expected in capsys.readouterr().out


def test_layers_accept_negative_numbers():
    words = ["features", "--model", "m", "--layers", "-1,-2", "--input", "i", "--output", "o"]
    assert parse(build_parser(), words).layers == "-1,-2"


def test_score_prints_the_official_metric_as_json_and_as_a_table_on_a_terminal(workplace, capsys, monkeypatch):
    (workplace / "dev.tsv").write_text("sentence\tlabel\nfine\t1\npoor\t0\n")
    (workplace / "predictions.tsv").write_text("index\tprediction\n0\t1\n1\t1\n")
    words = ["score", "sst2", "--data", "dev.tsv", "--predictions", "predictions.tsv"]
    assert main(words) == 0
    piped = capsys.readouterr().out
    scores = json.loads(piped)
    assert piped == json.dumps(scores, indent=1) + "\n"
    assert scores["accuracy"] == 50.0
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    assert main(words) == 0
    head, _, *rows = capsys.readouterr().out.splitlines()
    assert head.split() == ["task", "sst2"]
    assert ["accuracy", "50.00"] in [row.split() for row in rows]
    assert main([*words, "--json"]) == 0
    assert capsys.readouterr().out == piped


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_signal_to_the_parent_of_a_corpus_job_leaves_nothing(workplace, number, workers):
    (workplace / "in.txt").write_text("One sentence of many follows here.\nAnother one ends it.\n\n" * 300_000)
    program = (
        "import signal, sys; from bert_model import cli;"
        "signal.signal(signal.SIGINT, signal.SIG_IGN);"  # as a shell starts a background job
        "sys.exit(cli.main())"
    )
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            program,
            *["corpus", "lines:in.txt", "--output", "out/corpus", "--"],
            "--workers",
            workers,
        ],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        while process.poll() is None and not list((workplace / "out").glob(".corpus.partial-*/*/*")):
            time.sleep(0.02)
        os.kill(process.pid, number)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number, error
    assert "Traceback" not in error
    assert list((workplace / "out").iterdir()) == []


def test_module_runs_as_the_command_does():
    result = subprocess.run([sys.executable, "-m", "bert_model.cli", "nothing"], capture_output=True, text=True)
    assert (result.returncode, "invalid choice: 'nothing'" in result.stderr) == (2, True)
