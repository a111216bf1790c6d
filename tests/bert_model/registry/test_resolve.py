"""References to models."""

import fnmatch
import json
from pathlib import Path

import fsspec
import pytest
import tiny_tasks
import torch
from safetensors.torch import load_file

from bert_model.cli import main
from bert_model.registry.resolve import resolve_model
from bert_pipeline.errors import ArtifactError, UsageError
from bert_pipeline.manifest import load_manifest, publishing
from bert_pipeline.vocabulary.tokenizer import Tokenizer


def test_reference_is_a_directory_or_an_error_lists_the_forms(tmp_path: Path) -> None:
    assert resolve_model(str(tmp_path)) == tmp_path
    with pytest.raises(UsageError, match="no such model directory"):
        resolve_model("./no/such/place")


def test_local_model_with_a_flipped_bit_is_refused(tmp_path: Path) -> None:
    with publishing(tmp_path / "model", kind="pretrained_model", configuration={}, inputs={}) as draft:
        (draft.path / "model.safetensors").write_bytes(b"\0" * 100)
    assert resolve_model(str(tmp_path / "model")) == tmp_path / "model"
    (tmp_path / "model" / "model.safetensors").write_bytes(b"\0" * 99 + b"\1")
    with pytest.raises(ArtifactError, match="model.safetensors: sha256 is .* changed or damaged"):
        resolve_model(str(tmp_path / "model"))


@pytest.mark.parametrize(
    ("repository", "downloaded"),
    [
        ({"model.safetensors", "pytorch_model.bin"}, {"model.safetensors"}),
        ({"pytorch_model.bin"}, {"pytorch_model.bin"}),
    ],
)
def test_one_set_of_weights_is_downloaded(tmp_path, monkeypatch, repository, downloaded):
    def snapshot_download(reference, allow_patterns):
        for file in repository:
            if any(fnmatch.fnmatch(file, pattern) for pattern in allow_patterns):
                (tmp_path / file).touch()
        return str(tmp_path)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert {path.name for path in resolve_model("someone/model").iterdir()} == downloaded


def test_model_in_a_store_is_a_local_copy(tmp_path, monkeypatch):
    monkeypatch.setenv("BERT_HOME", str(tmp_path))
    url = "memory://models/pretrained"
    with publishing(url, kind="pretrained_model", configuration={}, inputs={}) as draft:
        (draft.path / "config.json").write_text("{}")
    directory = resolve_model(url)
    assert directory.is_relative_to(tmp_path / "cache")
    assert load_manifest(directory, verify="sha256").sha256 == load_manifest(url).sha256
    fsspec.filesystem("memory").rm("/models", recursive=True)


def test_proxy_that_refuses_is_one_sentence_with_the_reason(monkeypatch):
    class ProxyError(Exception):
        """As of the hub's HTTP client, which is no OSError."""

    ProxyError.__module__ = "httpx"

    def refuse(*_, **__):
        raise ProxyError("403 Forbidden")

    monkeypatch.setattr("huggingface_hub.snapshot_download", refuse)
    with pytest.raises(UsageError, match=r"did not return it \(ProxyError: 403 Forbidden\); check the name"):
        resolve_model("someone/model")
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # a defect stays one
        resolve_model("someone/model")


def test_revision_of_the_hub_follows_the_name(tmp_path, monkeypatch):
    asked = []

    def snapshot_download(reference, allow_patterns, revision):
        asked.append((reference, revision))
        return str(tmp_path)

    (tmp_path / "model.safetensors").touch()
    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    assert resolve_model("someone/model@refs/pr/2") == tmp_path
    assert asked == [("someone/model", "refs/pr/2")]


def test_directory_of_a_tensorflow_checkpoint_names_the_command_that_converts_it(tmp_path):
    for name in ("bert_config.json", "vocab.txt", "bert_model.ckpt.index", "bert_model.ckpt.data-00000-of-00001"):
        (tmp_path / name).touch()
    for reference in (tmp_path, tmp_path / "bert_model.ckpt"):
        with pytest.raises(UsageError, match=r"convert it first: bert convert .*/bert_model\.ckpt --output DIR"):
            resolve_model(str(reference))


@pytest.fixture
def old_repository(tmp_path, monkeypatch):
    """A model as the hub's oldest repositories have it, in whose files nothing states the case."""
    monkeypatch.setenv("BERT_HOME", str(tmp_path / "home"))
    model, old = tiny_tasks.make_model(tmp_path / "model"), tmp_path / "old"
    old.mkdir()
    for name in ("config.json", "vocab.txt"):
        (old / name).write_bytes((model / name).read_bytes())
    torch.save(load_file(model / "model.safetensors"), old / "pytorch_model.bin")
    return old


def test_error_names_the_option_that_states_the_case(old_repository, capsys):
    (input_file := old_repository.parent / "input.txt").write_text("THE film was [MASK] .\n")
    predict = ["predict", "mlm", "--input", str(input_file), "--model"]
    assert main([*predict, str(old_repository)]) == 2
    assert "give --cased or --no-cased" in capsys.readouterr().err
    assert main([*predict, str(old_repository), "--no-cased"]) == 0
    answer = capsys.readouterr().out
    assert main([*predict, str(old_repository.parent / "model")]) == 0  # which states it
    assert capsys.readouterr().out == answer
    assert main([*predict, str(old_repository), "--cased"]) == 0  # "THE" is no token
    assert capsys.readouterr().out != answer
    assert {path.name for path in old_repository.iterdir()} == {"config.json", "vocab.txt", "pytorch_model.bin"}


@pytest.mark.parametrize(("option", "lower_cases"), [("--cased", False), ("--no-cased", True)])
def test_model_made_from_an_old_repository_states_its_case(old_repository, option, lower_cases):
    adapted = old_repository.parent / "adapted"
    assert main(["adapt", str(old_repository), "--positions", "80", "--output", str(adapted), option]) == 0
    assert json.loads((adapted / "tokenizer_config.json").read_text())["do_lower_case"] is lower_cases


@pytest.mark.parametrize("name", ["model", "old"])
def test_case_may_be_that_of_the_vocabulary_that_a_model_gets(old_repository, name):
    """Where the model's files state one, it may be the other."""
    folder = old_repository.parent
    (folder / "new").mkdir()
    (folder / "new" / "vocab.txt").write_text("".join(f"{token}\n" for token in (*tiny_tasks.TOKENS, "Rome")))
    adapt = ["adapt", str(folder / name), "--cased", "--vocab", str(folder / "new"), "--output"]
    assert main([*adapt, str(folder / "adapted")]) == 0
    assert Tokenizer.from_directory(folder / "adapted").encode("Rome") == [len(tiny_tasks.TOKENS)]
    Tokenizer.from_directory(folder / "adapted").save(folder / "new")
    assert main([*adapt, str(folder / "again")]) == (2 if name == "model" else 0)


def test_option_that_contradicts_the_files_or_has_no_model_is_refused(old_repository, capsys):
    model = str(old_repository.parent / "model")
    assert main(["predict", "mlm", "--model", model, "--cased"]) == 2
    assert "model: its files state the other case" in capsys.readouterr().err
    assert main(["pretrain", "--config", "one-gpu", "--plan", "--cased"]) == 2
    assert "--cased: need --from MODEL" in capsys.readouterr().err
