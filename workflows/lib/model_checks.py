"""Checks of models, task data, predictions, the report and registered versions; see `data_checks`."""

import functools
import json
import math
from pathlib import Path

from bert_model.kinds import kind_of
from bert_model.kinds.base import fitted_of
from bert_model.training.metrics_log import read_history
from bert_pipeline.exam.ngrams import NGRAM_BASELINE_NAME
from bert_pipeline.exam.pairs import read_pairs, sample_pairs
from bert_pipeline.manifest import load_manifest
from workflows.lib.checks import Verdict, check_of, failed, fails_if_unreadable
from workflows.lib.lineage import load_published_task, registered_name
from workflows.lib.resources import BertHome, dump_and_task

HELD_OUT_LOSS = "held_out/mlm_loss"
TRAINING_LOSS = "train/mlm_loss"
HELD_OUT_TOLERANCES = {"held_out/mlm_loss": 0.02, "held_out/mlm_accuracy": 0.5, "held_out/nsp_accuracy": 0.5}
"""Tolerated differences of a repeated evaluation: other devices and world sizes sum in another order."""
MAX_SHARED_EXAMPLES = 0.05
"""Official sets share some: CoNLL-2003 has many short lines."""
PAIRS_PER_KIND = 200
"""Of the pairs for reporting: the interval of a score is about ±7 points a kind, less for the mean."""
SCORE_TOLERANCE = 0.01
"""Tolerated difference of a repeated evaluation in points of 100: thread counts and libraries differ."""


@check_of("pretrained_model")
def pretrained_model_loads(home: BertHome, dump: str) -> Verdict:
    """The weights are intact, load strictly, and are finite."""
    from bert_model.model.bert import BertForPreTraining
    from bert_model.model.weights import load_model

    directory = home.current_model(dump)
    load_manifest(directory, kind="pretrained_model", verify="sha256")
    model, report = load_model(BertForPreTraining, directory, log=False)
    # Every weight of the model is in the file, and no other.
    if report.created or report.dropped:
        return failed(f"not a strict load: {report}")
    parameters = sum(tensor.numel() for tensor in model.parameters())
    return Verdict(True, f"{report}, {parameters:,} parameters", {"parameters": parameters})


@check_of("pretrained_model")
def pretraining_loss_falls(home: BertHome, dump: str) -> Verdict:
    """The held-out loss is finite and lower at the end than at the start, and better than guessing, ln V."""
    directory = home.current_model(dump)
    manifest = load_manifest(directory, kind="pretrained_model")
    vocab_size = json.loads((directory / "config.json").read_text(encoding="utf-8"))["vocab_size"]
    logged: list[float] = []
    measured: list[tuple[int, float]] = []
    held_out: list[tuple[int, float]] = []
    # Every loss must be finite; the masked-LM losses are compared, and the last must be a held-out one.
    for event in read_history(directory.parent):
        metrics = event.get("metrics") or {}
        logged += [float(v) for key, v in metrics.items() if key.endswith("loss") and isinstance(v, (int, float))]
        measured += [(int(event["step"]), float(metrics[k])) for k in (TRAINING_LOSS, HELD_OUT_LOSS) if k in metrics]
        if event.get("event") == "evaluation" and HELD_OUT_LOSS in metrics:
            held_out.append((int(event["step"]), float(metrics[HELD_OUT_LOSS])))
    if not held_out:
        return failed("no held-out loss was ever measured")
    if not all(math.isfinite(loss) for loss in [*logged, *(loss for _, loss in held_out)]):
        return failed("a loss is not finite")
    # The first loss may be of training: phases of different lengths are evaluated on different instances.
    first, guessing = measured[0], math.log(vocab_size)
    published = manifest.counts.get("published_step", held_out[-1][0])  # the last one, unless `choose` took another
    last = next((evaluation for evaluation in held_out if evaluation[0] == published), held_out[-1])
    metadata = {"first_loss": first[1], "last_loss": last[1], "guessing": guessing, "evaluations": len(held_out)}

    # Otherwise the log next to the model is that of another training.
    recorded = manifest.counts.get(HELD_OUT_LOSS)
    if recorded is not None and not math.isclose(float(recorded), last[1], rel_tol=1e-6):
        return failed(f"the model's manifest records {recorded}, the last evaluation {last[1]}", metadata)
    # A model that continues another one has nothing to fall from: its first loss is that of a trained model.
    falls = "initial_model" in manifest.inputs or first == last or last[1] < first[1]
    return Verdict(
        passed=last[1] < guessing and falls,
        description=f"loss {first[1]:.3f} at step {first[0]}, held-out loss {last[1]:.3f} at step {last[0]}; "
        f"guessing is {guessing:.3f}",
        metadata=metadata,
    )


@check_of("pretrained_model")
def held_out_reproduces(home: BertHome, dump: str) -> Verdict:
    """The exported weights have the held-out loss and accuracy that the training measured in memory."""
    from bert_model.pretraining.evaluation import measure_held_out

    directory = home.current_model(dump)
    manifest = load_manifest(directory, kind="pretrained_model", verify="sha256")
    recorded = {key: value for key, value in manifest.counts.items() if key in HELD_OUT_TOLERANCES}
    if not recorded:
        return failed("its manifest records no held-out loss")
    metrics = measure_held_out(directory, instances=functools.partial(home.instances, dump))
    differences = [
        f"{key}: recorded {value:.4f}, now {metrics.get(key, math.nan):.4f}"
        for key, value in recorded.items()
        if not abs(metrics.get(key, math.nan) - value) <= HELD_OUT_TOLERANCES[key]  # NaN differs
    ]
    reproduced = ", ".join(f"{key} {metrics[key]:.4f}" for key in recorded if key in metrics)
    return Verdict(
        passed=not differences,
        description="; ".join(differences) or f"as recorded: {reproduced}",
        metadata={key: value for key, value in metrics.items() if math.isfinite(value)},
    )


@check_of("pretrained_model", warns=True)
def pretrained_model_beats_ngram_baseline(home: BertHome, dump: str) -> Verdict:
    """The model prefers the right text of more minimal pairs than a trigram model does; passes without an exam."""
    from bert_model.zero_shot.exam import take_exam

    directory = home.current_model(dump)
    load_manifest(directory, kind="pretrained_model", verify="sha256")
    stored = json.loads((directory.parent / "configuration.json").read_text(encoding="utf-8"))["configuration"]
    exam = stored.get("exam", "")
    if not exam or not (Path(exam) / NGRAM_BASELINE_NAME).is_file():
        return Verdict(True, f"not measured: the training's exam {exam!r} has no trigram model")

    # The pairs for choosing may have chosen the checkpoint.
    pairs = sample_pairs(read_pairs(exam), PAIRS_PER_KIND, "reporting")
    result = take_exam(directory, pairs, ngram_baseline=Path(exam) / NGRAM_BASELINE_NAME)
    scores = {kind: kind_result.score for kind, kind_result in result.kinds.items()}
    metadata = {f"exam_{kind}": score.accuracy for kind, score in scores.items()}
    metadata |= {"exam_pairs": sum(score.count for score in scores.values()), "exam_mean": result.mean}
    assert result.ngram_baseline_mean is not None
    return Verdict(
        passed=result.mean > result.ngram_baseline_mean,
        description=f"{result.mean:.1f} of 100, the trigram model {result.ngram_baseline_mean:.1f}, chance 50",
        metadata={**metadata, "ngram_baseline_mean": result.ngram_baseline_mean},
    )


@check_of("task_data")
def task_data_unchanged(home: BertHome, partition: str) -> Verdict:
    """The official files are the ones that were read, and hold training and dev examples."""
    dump, task = dump_and_task(partition)
    load_manifest(home.task_data(dump, task), kind="task_data", verify="sha256")
    data = load_published_task(home, dump, task)
    sizes = {"train": len(data.train), **{split: len(examples) for split, examples in data.dev.items()}}
    return Verdict(all(sizes.values()), ", ".join(f"{size:,} {split} examples" for split, size in sizes.items()), sizes)


@check_of("task_data", warns=True)
def task_splits_disjoint(home: BertHome, partition: str) -> Verdict:
    """Hardly any dev example has the text of a training example."""
    data = load_published_task(home, *dump_and_task(partition))
    # Compared by text alone: ids differ between the files.
    seen = {example.texts for example in data.train}
    dev = [example.texts for examples in data.dev.values() for example in examples]
    shared = sum(text in seen for text in dev)
    share = shared / max(1, len(dev))
    return Verdict(
        passed=share <= MAX_SHARED_EXAMPLES,
        description=f"{shared} of {len(dev):,} dev examples are in the training set too ({share:.1%})",
        metadata={"shared_share": share},
    )


@check_of("finetuned_model")
def finetuned_scores_reproduce(home: BertHome, partition: str) -> Verdict:
    """The saved weights predict dev with the recorded scores."""
    from bert_model.finetuning.task_model import load_task_model, prediction_device

    dump, task = dump_and_task(partition)
    directory = home.finetuning(dump, task)
    load_manifest(directory, kind="finetuned_model", verify="sha256")
    model = load_task_model(directory).to(prediction_device())  # as the trial: precisions differ between devices
    kind, differences, scores = kind_of(model.task), [], {}
    # What was chosen on dev is applied, not chosen again: it belongs to the model.
    for split, examples in load_published_task(home, dump, task).dev.items():
        encoded = kind.encode(examples, model.tokenizer, model.config)
        evaluation = kind.evaluate(
            examples,
            encoded,
            model.logits(encoded, num_threads=1, precision=model.config.precision),
            model.config,
            fitted=fitted_of(model.description) or None,
        )
        tolerance = 100.0 / max(1, len(examples)) + SCORE_TOLERANCE  # one example may be predicted differently
        for metric, value in evaluation.scores.items():
            key = f"{model.task.name}/{split}/{metric}"
            recorded = model.description["scores"].get(key)
            if recorded is None:
                continue
            scores[key] = value
            if not abs(value - recorded) <= tolerance:
                differences.append(f"{key}: recorded {recorded:.2f}, now {value:.2f}")
    if not scores:
        return failed("no recorded score to compare with")
    reproduced = ", ".join(f"{key} {value:.2f}" for key, value in scores.items())
    return Verdict(not differences, "; ".join(differences) or f"as recorded: {reproduced}", dict(scores))


@check_of("finetuned_model", warns=True)
def finetuned_not_degenerate(home: BertHome, partition: str) -> Verdict:
    """The model does not give the same prediction for every dev example, unless that is right for all."""
    results = home.finetuning(*dump_and_task(partition)) / "results.json"
    if json.loads(results.read_text(encoding="utf-8"))["degenerate"]:
        return failed("one prediction for all dev examples, or a loss that is not finite")
    return Verdict(True, "its predictions differ")


@check_of("candidate_model", blocks=False)
def registered_pretrained_consistent(home: BertHome, dump: str) -> Verdict:
    """The registered version has exactly the weights of the pre-trained model."""
    directory = home.current_model(dump)
    return registered_consistent(directory, registered_name(directory, None))


@check_of("registered_model", blocks=False)
def registered_task_consistent(home: BertHome, partition: str) -> Verdict:
    """The registered version has exactly the fine-tuned weights, and the champion can be read."""
    dump, task = dump_and_task(partition)
    return registered_consistent(home.finetuning(dump, task), registered_name(home.current_model(dump), task))


@fails_if_unreadable
def registered_consistent(directory: Path, name: str) -> Verdict:
    """Check that a version of `name` has the directory's content and downloads intact; the champion as well, if any."""
    from bert_model.registry.artifacts import check_outputs
    from bert_model.registry.operations import CANDIDATE, CHAMPION, download, list_models

    expected = load_manifest(directory, verify="sha256").sha256
    versions = list_models(name)
    matching = [version for version in versions if version.content_sha256 == expected]
    if not matching:
        return failed(f"{name}: no version holds {expected[:12]}…")
    if not any(CANDIDATE in version.aliases for version in versions):
        return failed(f"{name}: no version is {CANDIDATE}")
    # The newest version with this content: its stored files, which `download` checks, and what they compute.
    version = matching[-1]
    uri = f"models:/{name}/{version.version}"
    if other := check_outputs(download(uri), version.document.reference_logits):
        return failed(f"{uri} does not compute what was registered: {other}")

    # The champion may be another version: it is what users load.
    champion = next((version for version in versions if CHAMPION in version.aliases), None)
    if champion is None:
        return Verdict(True, f"{uri} is what was trained; there is no champion yet")
    download(f"models:/{name}@{CHAMPION}")
    description = f"{uri} is what was trained; champion is version {champion.version}"
    return Verdict(True, description, {"version": version.version, "champion": champion.version})


@check_of("report", blocks=False)
def report_intact(home: BertHome, dump: str) -> Verdict:
    """Table and pictures are there, and the table has the scores of the fine-tuned models."""
    directory = home.report(dump)
    load_manifest(directory, kind="report", verify="sha256")
    rows = json.loads((directory / "results.json").read_text(encoding="utf-8"))["rows"]
    # A task that was fine-tuned again makes the report out of date.
    for row in rows:
        path = home.finetuning(dump, row["task"]) / "results.json"
        results = json.loads(path.read_text(encoding="utf-8"))
        score = results["metrics"][results["main_key"]]["mean"]
        if score != row["score"]:
            return failed(f"{row['task']}: the report has {row['score']}, {path} {score}")
    pictures = sorted(directory.glob("*.png"))
    if not pictures or any(not path.read_bytes().startswith(b"\x89PNG\r\n") for path in pictures):
        return failed("a picture is missing or not a PNG")
    return Verdict(True, f"{len(rows)} rows, {len(pictures)} pictures")


@check_of("predictions", blocks=False)
def predictions_complete(home: BertHome, task: str) -> Verdict:
    """There is an answer for each input that can be read, in intact files."""
    directory = home.predictions(task)
    manifest = load_manifest(directory, kind="predictions", verify="sha256")
    for path in manifest.file_paths():
        # Line by line: a file of answers may be larger than memory.
        try:
            with open(path, encoding="utf-8") as lines:
                num_answers = sum(isinstance(json.loads(line), dict) for line in lines)
        except ValueError as error:
            return failed(f"{path}: not JSON lines ({error})")
        expected = manifest.files[path.relative_to(directory).as_posix()].get("rows")
        if num_answers != expected:
            return failed(f"{path}: {num_answers} answers, the manifest counts {expected}")
    rest = "".join(f", {count:,} {name}" for name, count in manifest.counts.items() if name != "answers")
    return Verdict(True, f"{manifest.counts['answers']:,} answers{rest}", dict(manifest.counts))
