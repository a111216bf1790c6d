"""Judging models, scores and registry versions by reopening them."""

import json
import math
from pathlib import Path
from typing import Any

from bert_pipeline.errors import BertError
from bert_pipeline.manifest import Manifest, load_manifest
from workflows.lib.data_checks import Verdict, intact
from workflows.lib.torchrun import read_metrics

HELD_OUT_LOSS = "held_out/mlm_loss"
TRAINING_LOSS = "train/mlm_loss"
HELD_OUT_TOLERANCES = {"held_out/mlm_loss": 0.02, "held_out/mlm_accuracy": 0.5, "held_out/nsp_accuracy": 0.5}
"""How far a repeated evaluation may be off: other devices and numbers of ranks add up in another order."""
MAX_SHARED_EXAMPLES = 0.05
REPRODUCED_WITHIN = 0.01
"""Points on the scale of 0 to 100 by which a repeated prediction may score differently (thread counts, libraries)."""


def pretrained_model_loads(directory: Path) -> Verdict:
    """Bytes as in the manifest; every tensor, and no other, is taken over into the model; all are finite."""
    import torch

    from bert_model.model.bert import BertForPreTraining
    from bert_model.model.weights import load_model

    verdict = intact(directory, "pretrained_model")
    if not verdict.passed:
        return verdict
    try:
        model, report = load_model(BertForPreTraining, directory)
    except BertError as error:
        return Verdict(passed=False, description=str(error))
    if report.created or report.dropped:
        return Verdict(passed=False, description=f"not a strict load: {report}")
    broken = [name for name, tensor in model.named_parameters() if not bool(torch.isfinite(tensor).all())]
    if broken:
        return Verdict(passed=False, description=f"not finite: {', '.join(broken[:5])}")
    parameters = sum(tensor.numel() for tensor in model.parameters())
    return Verdict(passed=True, description=f"{report}, {parameters:,} parameters", metadata={"parameters": parameters})


def pretraining_loss_falls(model_directory: Path) -> Verdict:
    """Every loss is finite, and the held-out masked-LM loss ends below the first one measured and below guessing, ln V.

    The first one may be of training: phases of different lengths are evaluated on different instances.
    """
    try:
        manifest = load_manifest(model_directory, kind="pretrained_model")
        vocab_size = json.loads((model_directory / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    except (BertError, OSError, ValueError, KeyError) as error:
        return Verdict(passed=False, description=str(error))
    events = read_metrics(model_directory.parent / "metrics.jsonl")
    losses = [
        (int(event["step"]), float(event["metrics"][HELD_OUT_LOSS]))
        for event in events
        if event.get("event") == "evaluation" and HELD_OUT_LOSS in (event.get("metrics") or {})
    ]
    train = [
        float(value)
        for event in events
        for key, value in (event.get("metrics") or {}).items()
        if key.endswith("loss") and isinstance(value, (int, float))
    ]
    if not losses:
        return Verdict(passed=False, description="no held-out loss was ever measured")
    if not all(math.isfinite(value) for value in [*train, *(loss for _, loss in losses)]):
        return Verdict(passed=False, description="a loss is not finite")
    measured = [
        (int(event["step"]), float(event["metrics"][key]))
        for event in events
        for key in (TRAINING_LOSS, HELD_OUT_LOSS)
        if key in (event.get("metrics") or {})
    ]
    first, last, guessing = measured[0], losses[-1], math.log(vocab_size)
    metadata = {"first_loss": first[1], "last_loss": last[1], "guessing": guessing, "evaluations": len(losses)}
    recorded = manifest.counts.get(HELD_OUT_LOSS)
    if recorded is not None and not math.isclose(float(recorded), last[1], rel_tol=1e-6):
        description = f"the model's manifest says {recorded}, the last evaluation {last[1]}"
        return Verdict(passed=False, description=description, metadata=metadata)
    falls = last[1] < guessing and (first == last or last[1] < first[1])
    return Verdict(
        passed=falls,
        description=f"loss {first[1]:.3f} at step {first[0]}, held-out loss {last[1]:.3f} at step {last[0]}; "
        f"guessing is {guessing:.3f}",
        metadata=metadata,
    )


def held_out_reproduces(model_directory: Path) -> Verdict:
    """The exported weights, loaded anew, have the held-out loss and accuracy that the training measured in memory."""
    from bert_model.pretraining.evaluation import measure_held_out

    try:
        manifest = load_manifest(model_directory, kind="pretrained_model", verify="sha256")
        recorded = {key: value for key, value in manifest.counts.items() if key in HELD_OUT_TOLERANCES}
        if not recorded:
            return Verdict(passed=False, description="its manifest records no held-out loss")
        found = measure_held_out(model_directory)
    except BertError as error:
        return Verdict(passed=False, description=str(error))
    gaps = {key: abs(found.get(key, math.nan) - value) for key, value in recorded.items()}
    differences = [
        f"{key}: recorded {value:.4f}, now {found.get(key, math.nan):.4f}"
        for key, value in recorded.items()
        if not gaps[key] <= HELD_OUT_TOLERANCES[key]
    ]
    said = ", ".join(f"{key} {found[key]:.4f}" for key in recorded if key in found)
    return Verdict(
        passed=not differences,
        description="; ".join(differences) or f"as recorded: {said}",
        metadata={key: value for key, value in found.items() if math.isfinite(value)},
    )


def task_data_unchanged(directory: Path) -> Verdict:
    """The official files hash as they did when they were read, and still give training and dev examples."""
    try:
        manifest, data = _reload_task(directory)
    except (BertError, OSError, ValueError, KeyError) as error:
        return Verdict(passed=False, description=str(error))
    expected = {name: entry["sha256"] for name, entry in manifest.inputs.items()}
    if data.sha256 != expected:
        changed = sorted(n for n in expected | data.sha256 if expected.get(n) != data.sha256.get(n))
        return Verdict(passed=False, description=f"changed since it was read: {', '.join(changed)}")
    sizes = {"train": len(data.train), **{split: len(examples) for split, examples in data.dev.items()}}
    return Verdict(
        passed=all(sizes.values()),
        description=", ".join(f"{size:,} {split} examples" for split, size in sizes.items()),
        metadata=sizes,
    )


def task_splits_disjoint(directory: Path) -> Verdict:
    """Few dev examples stand in the training set word by word; official sets share some (CoNLL-2003's short lines)."""
    from bert_pipeline.tasks.example import example_text

    try:
        _, data = _reload_task(directory)
    except (BertError, OSError, ValueError, KeyError) as error:
        return Verdict(passed=False, description=str(error))
    seen = {example_text(example) for example in data.train}
    dev = [example_text(example) for examples in data.dev.values() for example in examples]
    shared = sum(text in seen for text in dev)
    share = shared / max(1, len(dev))
    return Verdict(
        passed=share <= MAX_SHARED_EXAMPLES,
        description=f"{shared} of {len(dev):,} dev examples stand in the training set too ({share:.1%})",
        metadata={"shared_share": share},
    )


def _reload_task(directory: Path) -> tuple[Manifest, Any]:
    from bert_pipeline.tasks.task import load_task_data

    manifest = load_manifest(directory, kind="task_data", verify="sha256")
    source = json.loads((directory / "source.json").read_text(encoding="utf-8"))
    return manifest, load_task_data(manifest.configuration["task"], source["path"], source["dev_fraction"])


def finetuned_scores_reproduce(directory: Path, task_directory: Path) -> Verdict:
    """The saved weights, loaded anew, predict dev with the scores that task.json records."""
    from bert_model.finetuning.decode import evaluate
    from bert_model.finetuning.encode import encode_examples
    from bert_model.finetuning.task_model import load_task_model
    from bert_pipeline.tasks.task import load_task_data

    verdict = intact(directory, "finetuned_model")
    if not verdict.passed:
        return verdict
    try:
        model = load_task_model(directory)
        source = json.loads((task_directory / "source.json").read_text(encoding="utf-8"))
        data = load_task_data(model.task, source["path"], source["dev_fraction"])
        differences, metadata = [], {}
        for split, examples in data.dev.items():
            encoded = encode_examples(model.task, examples, model.tokenizer, model.config)
            evaluation = evaluate(
                model.task,
                examples,
                encoded,
                model.logits(encoded, num_threads=1),
                model.config,
                null_threshold=model.facts.get("null_threshold"),
            )
            for metric, value in evaluation.scores.items():
                key = f"{model.task.name}/{split}/{metric}"
                recorded = model.facts["scores"].get(key)
                if recorded is None:
                    continue
                metadata[key] = value
                if not abs(value - recorded) <= max(REPRODUCED_WITHIN, 100.0 / len(examples) + REPRODUCED_WITHIN):
                    differences.append(f"{key}: recorded {recorded:.2f}, now {value:.2f}")
    except (BertError, OSError, ValueError, KeyError) as error:
        return Verdict(passed=False, description=str(error))
    if not metadata:
        return Verdict(passed=False, description="no recorded score to compare with")
    scores = ", ".join(f"{key} {value:.2f}" for key, value in metadata.items())
    return Verdict(
        passed=not differences, description="; ".join(differences) or f"as recorded: {scores}", metadata=metadata
    )


def finetuned_not_degenerate(directory: Path) -> Verdict:
    """The dev predictions on disk are not all the same, where the training labels are not."""
    try:
        manifest = load_manifest(directory, kind="finetuned_model", verify="sha256")
    except BertError as error:
        return Verdict(passed=False, description=str(error))
    counts: dict[str, int] = {}
    for name in manifest.files:
        path = Path(name)
        if path.parent.name != "predictions" or "dev" not in path.stem or path.stem.count("."):
            continue
        counts[path.stem] = len(set(_predictions(directory / name)))
    collapsed = [split for split, different in counts.items() if different < 2]
    return Verdict(
        passed=bool(counts) and not collapsed,
        description=f"one prediction for everything on {', '.join(collapsed)}"
        if collapsed
        else "; ".join(f"{split}: {count} different predictions" for split, count in counts.items())
        or "no dev predictions",
        metadata=dict(counts),
    )


def _predictions(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".jsonl":
        return [json.dumps(json.loads(line)["prediction"]) for line in text.splitlines() if line]
    document: dict[str, Any] = json.loads(text)
    return [json.dumps(value) for value in document.values()]


def report_agrees(directory: Path, finetuning: Path) -> Verdict:
    """Files as in the manifest, pictures are pictures, and each row says what the task's results.json says."""
    verdict = intact(directory, "report")
    if not verdict.passed:
        return verdict
    try:
        rows = json.loads((directory / "results.json").read_text(encoding="utf-8"))["rows"]
        for row in rows:
            results = json.loads((finetuning / row["task"] / "results.json").read_text(encoding="utf-8"))
            found = results["metrics"][results["main_key"]]["mean"]
            if found != row["score"]:
                return Verdict(passed=False, description=f"{row['task']}: says {row['score']}, its model {found}")
    except (OSError, ValueError, KeyError) as error:
        return Verdict(passed=False, description=str(error))
    pictures = sorted(directory.glob("*.png"))
    if not pictures or any(not path.read_bytes().startswith(b"\x89PNG\r\n") for path in pictures):
        return Verdict(passed=False, description="a picture is missing or not a PNG")
    return Verdict(passed=True, description=f"{len(rows)} rows, {len(pictures)} pictures")


def predictions_complete(directory: Path) -> Verdict:
    """Files as in the manifest, each line an answer, and as many as there were inputs."""
    verdict = intact(directory, "predictions")
    if not verdict.passed:
        return verdict
    manifest = load_manifest(directory)
    total = 0
    for path in manifest.file_paths():
        try:
            with open(path, encoding="utf-8") as lines:
                found = sum(isinstance(json.loads(line), dict) for line in lines)
        except ValueError as error:
            return Verdict(passed=False, description=f"{path}: not JSON lines ({error})")
        expected = manifest.files[path.relative_to(directory).as_posix()].get("rows")
        if found != expected:
            return Verdict(passed=False, description=f"{path}: {found} answers, the manifest counts {expected}")
        total += found
    return Verdict(
        passed=True, description=f"{total:,} answers in {len(manifest.files)} files", metadata={"answers": total}
    )


def registered_consistent(directory: Path, name: str) -> Verdict:
    """A version of `name` holds the directory's content and downloads whole; so does the champion, if there is one."""
    from bert_model.registry.artifacts import check_outputs
    from bert_model.registry.registry import CANDIDATE, CHAMPION, download, list_models

    try:
        expected = load_manifest(directory, verify="sha256").sha256
        versions = list_models(name)
        mine = [version for version in versions if version.content_sha256 == expected]
        if not mine:
            return Verdict(passed=False, description=f"{name}: no version holds {expected[:12]}…")
        if not any(CANDIDATE in version.aliases for version in versions):
            return Verdict(passed=False, description=f"{name}: no version is {CANDIDATE}")
        uri = f"models:/{name}/{mine[-1].version}"
        local = download(uri)
        found = load_manifest(local, verify="sha256").sha256
        if found != expected:
            return Verdict(passed=False, description=f"{uri} holds {found[:12]}…, expected {expected[:12]}…")
        other = check_outputs(local, mine[-1].tags.get("reference_logits", ""))
        if other:
            return Verdict(passed=False, description=f"{uri} does not compute what was registered: {other}")
        champion = next((version for version in versions if CHAMPION in version.aliases), None)
        if champion is None:
            return Verdict(passed=True, description=f"{uri} is what was trained; there is no champion yet")
        if champion.tags.get("degenerate") == "true" or not champion.tags.get("score"):
            return Verdict(
                passed=False, description=f"{name}: champion version {champion.version} is degenerate or unscored"
            )
        load_manifest(download(f"models:/{name}@{CHAMPION}"), verify="sha256")
    except BertError as error:
        return Verdict(passed=False, description=str(error))
    return Verdict(
        passed=True,
        description=f"{uri} is what was trained; champion is version {champion.version}",
        metadata={"version": mine[-1].version, "champion": champion.version},
    )
