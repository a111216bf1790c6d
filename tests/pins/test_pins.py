"""Pins: what must stay the same to the last bit, or the last word, until somebody changes it on purpose.

A pin is a text in `data/`, which a function of this module makes again; `python -m tests.pins.renew` writes them anew.
They hold on every machine, so no result of floating-point sums is one: `python -m tests.compare` compares those.
"""

import contextlib
import dataclasses
import difflib
import hashlib
import io
import json
import os
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import dagster as dg
import numpy as np
import pytest
import torch
import yaml

from bert_model import cli
from bert_model.metrics.uncertainty import UnitStatistics
from bert_model.pretraining import __main__ as pretraining
from bert_model.pretraining.batch import make_batch, split_micro_batches
from bert_model.pretraining.config import PretrainingConfig
from bert_model.pretraining.data import InstanceReader, InstanceSplit
from bert_model.pretraining.phases import Timetable, load_phases
from bert_model.pretraining.run import pretrain
from bert_model.registry.promotion import GateConfig, Inspection, decide
from bert_model.registry.versions import RegisteredVersion, Version
from bert_pipeline.configuration import from_mapping
from bert_pipeline.corpus.job import build_corpus
from bert_pipeline.corpus.parquet import read_documents
from bert_pipeline.corpus.splits import CorpusConfig
from bert_pipeline.exam.job import build_exam
from bert_pipeline.exam.pairs import ExamConfig, read_pairs
from bert_pipeline.instances.job import build_instances
from bert_pipeline.instances.pairs import InstancesConfig
from bert_pipeline.manifest import load_manifest
from bert_pipeline.step import STEPS
from bert_pipeline.vocabulary.job import build_vocabulary
from bert_pipeline.vocabulary.wordpiece import VocabularyConfig
from workflows import backup, doctor, run, serve
from workflows.definitions import defs

DATA = Path(__file__).parent / "data"
WIKITEXT = Path(__file__).parents[1] / "data" / "wikitext"
ONE_WORKER = ("--workers", "1")


# --- data: documents, vocabulary, instances ---


def pages() -> Iterator[tuple[str, str, str]]:
    """Yield (language, title, wikitext): a page for each case of the extractor, and one for each template."""
    for path in sorted((WIKITEXT / "passages").glob("*.txt")):
        for number, block in enumerate(path.read_text(encoding="utf-8").split("\n### ")[1:]):
            wikitext = block.partition("\n")[2].rpartition("\n---")[0]
            yield "en", f"{path.stem} {number}", f"{wikitext}\n\nThis is page {number} of {path.stem}."
    calls = defaultdict(list)
    for path in sorted(WIKITEXT.glob("*.txt")):
        address = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("@ "):
                address = line.removeprefix("@ https://")
            elif " =>" in line and not line.startswith("#"):
                calls[address].append(f"It has {line.partition(' =>')[0]} in it.")
    for address, sentences in calls.items():
        yield address.partition(".")[0], f"templates {address.rpartition(':')[2]}", "\n\n".join(sentences)


def write_dumps(folder: Path) -> list[str]:
    """Write a dump for each language; return their paths."""
    by_language: dict[str, list[str]] = defaultdict(list)
    for language, *texts in pages():
        title, wikitext = (text.replace("&", "&amp;").replace("<", "&lt;") for text in texts)
        number = zlib.crc32(title.encode())  # a page more must not change the ids of the others
        by_language[language].append(
            f"<page><title>{title}</title><ns>0</ns><id>{number}</id><revision><id>{number}</id><model>wikitext</model>"
            f"<format>text/x-wiki</format><text>{wikitext}</text></revision></page>"
        )
    for language, elements in by_language.items():
        info = f"<siteinfo><dbname>{language}wiki</dbname><namespaces /></siteinfo>"
        dump = f'<mediawiki version="0.11" xml:lang="{language}">{info}{"".join(elements)}</mediawiki>'
        (folder / f"{language}.xml").write_text(dump, encoding="utf-8")
    return [str(folder / f"{language}.xml") for language in by_language]


def instances(folder: Path, **settings: Any) -> Path:
    """Build instances, and what they are made of, unless they are there."""
    if not (folder / "corpus").exists():
        config = CorpusConfig(held_out_per_mille=100, shard_bytes=40_000)
        build_corpus(write_dumps(folder), folder / "corpus", config, ONE_WORKER)
        words = VocabularyConfig(vocab_size=1200, num_unused=3)
        build_vocabulary(folder / "corpus", folder / "vocabulary", words, ONE_WORKER)
    output = folder / "-".join(map(str, settings.values()))
    if not output.exists():
        config = InstancesConfig(dupe_factor=2, **settings)
        build_instances(folder / "corpus", folder / "vocabulary", output, config, ONE_WORKER)
    return output


def versions(*steps: str) -> str:
    """Return the first line of a pin of what steps make."""
    return f"versions: {', '.join(f'{step} {STEPS[step].version}' for step in steps)}"


def pin_data(folder: Path) -> str:
    lines = [versions("corpus", "vocabulary", "instances", "exam")]
    for settings in (
        {"max_seq_length": 64},
        {"max_seq_length": 64, "masking": "static", "whole_word_masking": True},
        {"max_seq_length": 32, "format": "tfrecord"},
    ):
        directory = instances(folder, **settings)
        for split in ("train", "held_out"):
            source = InstanceSplit(directory, split)
            groups = [dict(vars(source.read(group))) for group in source.groups]
            assert {group.pop("continues_word") for group in groups} == {None}  # WordPiece's ids tell
            rows = digest(values_of(group.values()) for group in groups)
            lines.append(f"instances of {settings}, {split}: {source.num_instances}, {rows}")
    pieces = (folder / "vocabulary" / "vocab.txt").read_text(encoding="utf-8").splitlines()
    lines.append(f"vocabulary: {len(pieces)}, {digest(pieces)}")
    build_exam(folder / "corpus", folder / "exam", ExamConfig(pairs_per_kind=20), ONE_WORKER)
    pairs = read_pairs(folder / "exam")
    lines.append(f"pairs of the exam: {len(pairs)}, {digest(map(dataclasses.astuple, pairs))}")
    groups = defaultdict(list)
    for path in load_manifest(folder / "corpus").file_paths("documents-"):
        for document in read_documents(path):
            group = f"{document.language} {document.title.split()[0]}"
            groups[group].append(dataclasses.astuple(document))
    lines += [f"documents of {group}: {len(rows)}, {digest(sorted(rows))}" for group, rows in sorted(groups.items())]
    return "\n".join(lines) + "\n"


def values_of(arrays: Iterable[Any]) -> list[Any]:
    return [array.tolist() if isinstance(array, (np.ndarray, torch.Tensor)) else array for array in arrays]


def digest(values: Iterable[Any]) -> str:
    """Hash values by their text."""
    return hashlib.sha256("\n".join(map(repr, values)).encode()).hexdigest()[:16]


# --- twenty steps of pre-training ---


def pin_training(folder: Path) -> str:
    """What a training of twenty steps in two phases logs of each, and the batches of two ranks."""
    phase = {"learning_rate": 1e-3, "warmup_steps": 2}
    short = phase | {"max_seq_length": 32, "steps": 12, "global_batch_size": 24, "initial_batch_size": 8}
    long = phase | {"max_seq_length": 64, "steps": 8, "global_batch_size": 12}
    phases = [
        item | {"instances": str(instances(folder, max_seq_length=item["max_seq_length"]))} for item in (short, long)
    ]
    settings = {
        "model": {"preset": "tiny", "overrides": {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2}},
        "phases": phases,
        "masking": {"whole_word_masking": True},
        "micro_batch_size": 5,
        "shuffle_row_groups": 2,
        "log_interval_steps": 1,
        "evaluation_interval_steps": 0,
    }
    config = from_mapping(PretrainingConfig, settings)
    pretrain(config, folder / "training", experiment="", device="cpu")
    events = [json.loads(line) for line in (folder / "training" / "metrics.jsonl").read_text().splitlines()]
    logged = {event["step"]: event["metrics"] for event in events if event["event"] == "train"}

    lines = [versions("corpus", "vocabulary", "instances", "pretrained_model")]
    phases, tokenizer = load_phases(config)
    for phase in Timetable(config, phases).phases:
        reader = InstanceReader(phase.train, seed=config.seed, groups_per_window=config.shuffle_row_groups)
        for step in range(phase.first_step, phase.end_step):
            metrics = logged[step + 1]
            rate, tokens = metrics["train/learning_rate"], metrics["train/tokens_seen"]
            lines.append(f"step {step + 1}: rate {rate:.12g}, {tokens:.0f} tokens seen")
            for rank in range(2):
                position, size = phase.position_at(step), phase.batch_size_at(step)
                samples = reader.take(position, size)
                parts = split_micro_batches(samples, config.micro_batch_size, rank=rank, world_size=2)
                batches = [make_batch(part, phase.masking, tokenizer, seed=config.seed) for part in parts]
                shapes = " ".join("x".join(map(str, batch.input_ids.shape)) for batch in batches)
                rows = " ".join(
                    f"{epoch}/{row}" for part in parts for epoch, row in zip(part.epochs, part.sample_indices)
                )
                counts = ("tokens", "predictions", "squared_lengths")
                masked = [
                    values_of([*batch.inputs.values(), *(getattr(batch.counts, name) for name in counts)])
                    for batch in batches
                ]
                lines.append(f"  rank {rank}: {shapes}, masked {digest(masked)}, rows {rows}")
    for schedule in ("run", "trapezoid"):
        settings["phases"][1]["warmup_steps"] = 0
        changed = Timetable(from_mapping(PretrainingConfig, settings | {"schedule": schedule}), phases)
        lines.append(f"rates of {schedule}: {' '.join(f'{changed.learning_rate_at(step):.6g}' for step in range(20))}")
    return "\n".join(lines) + "\n"


# --- commands ---


def pin_commands(folder: Path) -> str:
    """`--help` and `--settings` of every command, an option or a setting on a line."""
    parts, seen = [], {}
    for program, main in {
        "bert": cli.main,
        "python -m bert_model.pretraining": pretraining.main,
        "python -m workflows.run": run.main,
        "python -m workflows.serve": serve.main,
        "python -m workflows.backup": backup.main,
        "python -m workflows.doctor": doctor.main,
    }.items():
        # Commands of a program are listed in lines of four spaces.
        lines = printed(main, "--help").splitlines()
        names = [line.split()[0] for line in lines if line.startswith("    ") and line[4] != " "]
        for words in [[], *([name] for name in names)]:
            options = ["--help"]
            for option in options:
                text = printed(main, *words, option)
                parts.append(f"$ {' '.join([program, *words, option])}\n{seen.setdefault(text, text)}")
                seen[text] = "(as above)\n"
                options += ["--settings"] if option == "--help" and "--settings" in text else []
    return "\n".join(parts)


def printed(main: Callable[[list[str]], Any], *words: str) -> str:
    with (
        mock.patch.dict(os.environ, {"COLUMNS": "10000"}),
        contextlib.redirect_stdout(io.StringIO()) as output,
        contextlib.suppress(SystemExit),
    ):
        main(list(words))
    return output.getvalue()


# --- gates ---


def pin_decisions(folder: Path) -> str:
    """What the gates decide on the recorded versions of `data/versions.yaml`."""
    parts = []
    for pair in yaml.safe_load((DATA / "versions.yaml").read_text(encoding="utf-8"))["pairs"]:
        right = pair.get("statistics of sst2", {})
        decision = decide(
            version(pair["candidate"]),
            version(pair["champion"]) if "champion" in pair else None,
            inspection=Inspection(**pair.get("inspection", {})),
            statistics={("sst2", number): units(seeds) for number, seeds in right.items()},
            config=from_mapping(GateConfig, pair.get("gates", {})),
        )
        parts.append(f"# {pair['what']}\n{decision.table()}\n")
    return "\n".join(parts)


def version(values: dict[str, Any]) -> RegisteredVersion:
    """Return a version as it is read from its tags and document, with the scores of its fine-tunings."""
    scores = [{"score": score} for score in values.get("finetunings", [])]
    document, *finetunings = (Version.from_json(json.dumps(item)) for item in (values["document"], *scores))
    return RegisteredVersion(
        name="bert-tiny",
        version=values["version"],
        tags=values["tags"],
        document=document,
        scores=tuple(
            dataclasses.replace(item.score, version=values["version"])
            for item in finetunings or [document]
            if item.score is not None
        ),
    )


def units(seeds: list[str]) -> UnitStatistics:
    """Return the statistics of a string for each seed, with a 1 for every example that is right."""
    values = 100.0 * np.array([list(map(int, right)) for right in seeds], dtype=float)[:, :, None]
    ids = tuple(map(str, range(values.shape[1])))
    return UnitStatistics(metric="accuracy", form="mean", ids=ids, seeds=tuple(range(len(seeds))), values=values)


# --- definitions ---


def pin_definitions(folder: Path) -> str:
    """Assets, checks, jobs, schedules and sensors, with what they depend on."""
    definitions, lines = defs(), []
    for spec in definitions.resolve_all_asset_specs():
        partitions, policy = spec.partitions_def, spec.freshness_policy
        is_multiple = isinstance(partitions, dg.MultiPartitionsDefinition)
        asset = definitions.resolve_asset_graph().get(spec.key)
        windows = (policy.warn_window, policy.fail_window) if policy else ()
        properties = {
            "deps": sorted(dep.asset_key.to_user_string() for dep in spec.deps),
            "group": spec.group_name,
            "kinds": sorted(spec.kinds),
            "owners": sorted(spec.owners),
            "partitions": sorted(partitions.partition_dimension_names)
            if is_multiple
            else [partitions and partitions.name],
            "tags": {key: value for key, value in sorted(spec.tags.items()) if not key.startswith("dagster/")},
            "days until stale": [window.to_timedelta().days for window in windows],
            "pool": asset.assets_def.op.pool if asset.is_executable else None,
            "automation": spec.automation_condition.get_label() if spec.automation_condition else None,
        }
        lines.append(f"asset {spec.key.to_user_string()}: {properties}")
    for check in definitions.asset_checks:
        for spec in check.check_specs:
            lines.append(f"check {spec.asset_key.to_user_string()}.{spec.name}: blocking={spec.blocking}")
    for job in definitions.resolve_all_job_defs():
        if not job.name.startswith("__"):
            lines.append(f"job {job.name}: {' '.join(sorted(node.name for node in job.graph.nodes))}")
    lines += [f"schedule {it.name}: {it.cron_schedule}, {it.default_status.value}" for it in definitions.schedules]
    lines += [f"sensor {it.name}: {it.default_status.value}" for it in definitions.sensors]
    return "\n".join(sorted(lines)) + "\n"


PINS: dict[str, Callable[[Path], str]] = {
    "commands.txt": pin_commands,
    "data.txt": pin_data,
    "decisions.txt": pin_decisions,
    "definitions.txt": pin_definitions,
    "training.txt": pin_training,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pins")


def what_to_do(name: str, pinned: str, now: str) -> str:
    """Return what to do about a pin that differs, or "" for one whose steps have a new version."""
    first = now.partition("\n")[0]
    if first.startswith("versions: ") and first == pinned.partition("\n")[0]:
        return (
            f"{name}: a step makes other results under the version that is pinned ({first}), so what users have made "
            "would be reused; raise its `version` in STEPS of bert_pipeline/step.py, or undo the change"
        )
    return ""


@pytest.mark.parametrize("name", PINS)
def test_pin_holds(name: str, folder: Path) -> None:
    stored, now = (DATA / name).read_text(encoding="utf-8"), PINS[name](folder)
    difference = list(difflib.unified_diff(stored.splitlines(), now.splitlines(), "pinned", "now", n=0))
    advice = (
        f"{name}: this makes other results; if they are wanted, run `python -m tests.pins.renew {name}`, raise "
        "what has changed (a format in FORMAT_VERSIONS of bert_pipeline/manifest.py; with a default the `version` of "
        "its step in bert_pipeline/step.py), and give the reason in CHANGELOG.md"
    )
    assert not difference, "\n".join([what_to_do(name, stored, now) or advice, *difference])


def test_results_that_differ_need_a_new_version() -> None:
    pinned = "versions: corpus 1\ndocuments: 2, abc\n"
    advice = what_to_do("data.txt", pinned, pinned.replace("abc", "abd"))
    assert "raise its `version` in STEPS of bert_pipeline/step.py" in advice
    assert not what_to_do("data.txt", pinned, "versions: corpus 2\ndocuments: 2, abd\n")
    assert not what_to_do("commands.txt", "$ bert --help\nold\n", "$ bert --help\nnew\n")
