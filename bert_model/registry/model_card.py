"""Model card in Markdown: scores, data, limits, license, training curves, configuration.

It describes a registered version, and as README.md with the hub's YAML header a model directory.
"""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from bert_model.finetuning.caveats import describe, kinds_of, read_caveats
from bert_model.finetuning.results import WITH_CONTEXT
from bert_model.kinds import KINDS
from bert_model.model.config import BILSTM_MODEL_TYPE, CONFIG_NAME, ModernConfig
from bert_model.registry.versions import FINETUNED, TaskScore, Version, describe_model, read_results
from bert_model.tables import format_table
from bert_model.training.metrics_log import read_history
from bert_pipeline.atomic import replace_text
from bert_pipeline.configuration import read_yaml
from bert_pipeline.manifest import Manifest, load_manifest
from bert_pipeline.tasks.catalogue import TASKS

CARD_NAME = "model_card.md"
README_NAME = "README.md"
CURVES_NAME = "curves.png"
SECTIONS = ("Scores", "Data", "Limits", "License", "Curves", "Configuration")
"""Sections in order of importance: the registry shows only the first 5,000 characters of a card."""
ENCODERS = {"bert": "BERT", ModernConfig.model_type: "encoder of ModernBERT's architecture"}
"""What titles call a model, by the `model_type` of its config.json."""

MAX_DESCRIPTION_LENGTH = 5000
MAX_EVALUATIONS = 12
NO_SCORES = "None yet: the scores of its fine-tunings are entered when a promotion is decided."
LINEAGE = (
    ("dump", "Dump"),
    ("content_sha256", "Content of the artifact (sha256)"),
    ("corpus_sha256", "Corpus"),
    ("vocabulary_sha256", "Vocabulary"),
    ("instances_sha256", "Instances"),
    ("pretrained_model_sha256", "Pre-trained model"),
    ("training_data_sha256", "Training and dev examples"),
    ("input.initial_model", "Continued from weights"),
    ("code_commit", "Code at registration"),
    ("dagster_run_id", "Dagster run"),
)

HUB = read_yaml(Path(__file__).with_name("hub.yaml"))
"""What the hub calls data sets and metrics, and how models are opened."""
UNKNOWN_LICENSE = "unknown"
"""The hub's name for a license that is not stated."""
WIKI = re.compile(r"(?P<language>[a-z]{2,3}|simple|sample)wiki-.*")
"""Name of a dump that tells its language."""


def write_readme(directory: Path, tags: Mapping[str, str] | None = None) -> None:
    """Write README.md into a published model directory: what the hub shows, and lists the model by.

    `tags` add to its document what the directory lacks, such as "license" and "dump". The file is no part of the
    manifest, so it may be edited.
    """
    manifest = load_manifest(directory)
    document = describe_model(manifest, tags)
    events = read_history(directory.parent)

    # The model card with a section on its use after the title, below the hub's header.
    card = model_card(directory.name, manifest, document, events=events, curves=False)
    title, _, sections = card.partition("\n\n")
    header = hub_metadata(manifest, document)
    use = f"In this project: `bert predict {document.task or 'mlm'} --model {directory.name}`."
    if pipeline := header.get("pipeline_tag"):
        way = "class" if pipeline in HUB["classes"] else "pipeline"
        template = HUB["use"]["sentences" if header["library_name"] == "sentence-transformers" else way]
        model_class = HUB["classes"].get(pipeline, "")
        code = template.format(pipeline=pipeline, model_class=model_class, name=directory.name)
        use = f"```python\n{code}\n```\n\n{use}"
    front = yaml.safe_dump(header, sort_keys=False, allow_unicode=True)
    text = f"---\n{front}---\n\n{title}\n\n## Use\n\n{use}\n\n{sections}"
    replace_text(directory / README_NAME, text)


def stated_license(directory: Path) -> str:
    """Return the license in the header of a directory's README.md, where its owner may have written it; "" for none."""
    try:
        text = (directory / README_NAME).read_text(encoding="utf-8")
        header = yaml.safe_load(text.split("---\n", 2)[1]) if text.startswith("---\n") else None
    except (OSError, ValueError, yaml.YAMLError):
        return ""
    license = header.get("license") if isinstance(header, dict) else None
    return license if isinstance(license, str) and license != UNKNOWN_LICENSE else ""


def hub_metadata(manifest: Manifest, document: Version) -> dict[str, Any]:
    """Return the hub's header for a model directory: https://huggingface.co/docs/hub/model-cards#model-card-metadata.

    Architectures that transformers does not have get neither `library_name` nor `pipeline_tag`.
    """
    config = json.loads((manifest.path / CONFIG_NAME).read_text(encoding="utf-8"))
    generated, finetuned = document.generated_sample, manifest.kind == FINETUNED
    description = json.loads((manifest.path / "task.json").read_text(encoding="utf-8")) if finetuned else {}
    kind = KINDS[description["kind"]] if finetuned else None

    # The language is known for the published files of the paper's tasks and for the sample; otherwise the dump's name
    # tells it.
    results = read_results(manifest) if finetuned else {}
    official = bool(results.get("official"))
    header: dict[str, Any] = {}
    dump = WIKI.fullmatch(document.lineage.get("dump", ""))
    if official or generated:
        header["language"] = "en"  # that of every task of the paper
    elif dump is not None:
        header["language"] = {"simple": "en", "sample": "en"}.get(dump["language"], dump["language"])
    header["license"] = document.lineage.get("license", UNKNOWN_LICENSE).lower()

    # A BiLSTM head has a model type of its own, which transformers cannot load.
    if config["model_type"] != BILSTM_MODEL_TYPE:
        header["library_name"], pipeline = (kind.library, kind.pipeline) if kind else ("transformers", "fill-mask")
        header["pipeline_tag"] = "feature-extraction" if description.get("feature_input") else pipeline
    header["tags"] = [config["model_type"].partition("_")[0]]
    if kind is None:
        return header

    # Scores, as the hub lists them: the data set by its name on the hub, the means over seeds.
    task = TASKS.get(description["task"])
    glue = task is not None and task.suite == "glue"
    # Other files than the published ones share only their task with the hub's data set.
    dataset = None if not official else HUB["glue"] if glue else HUB["datasets"].get(description["task"])
    if dataset is not None:
        header["datasets"] = [dataset]
    names = {key: key.rpartition("/")[2].removesuffix(WITH_CONTEXT) for key in results["metrics"]}
    names = {key: HUB["metrics"].get(name, name) for key, name in names.items()}
    header["metrics"] = list(dict.fromkeys(names.values()))
    # One result with a row for each metric; "config" selects the task in GLUE's data set.
    measured = {"name": results["title"], "type": dataset, "split": "validation"}
    if dataset is None:
        examples = "generated" if generated else "other"
        measured = {"name": f"{results['title']}, {examples} examples", "type": description["task"]}
    elif glue:
        measured["config"] = description["task"]
    metrics = []
    for key, entry in results["metrics"].items():
        by_seed = ", ".join(f"{value:.1f}" for value in entry["values"])
        words = f"{key.partition('/')[2]} of 100, by seed: {by_seed}"
        metrics.append({"type": names[key], "value": round(entry["mean"], 2), "name": words})
    result = {"task": {"type": kind.pipeline, "name": results["title"]}, "dataset": measured, "metrics": metrics}
    header["model-index"] = [{"name": manifest.path.name, "results": [result]}]
    return header


def encoder_of(manifest: Manifest) -> str:
    """Return what titles call a model."""
    config = json.loads((manifest.path / CONFIG_NAME).read_text(encoding="utf-8"))
    return ENCODERS.get(config.get("model_type", ""), ENCODERS["bert"])


def model_card(
    name: str, manifest: Manifest, document: Version, *, events: Sequence[Mapping[str, Any]] = (), curves: bool
) -> str:
    """Return the card of a version that is about to be registered.

    `document` is the version's, `events` the lines of a pre-training's metrics.jsonl; with `curves` the card shows the
    picture CURVES_NAME.
    """
    # The order is that of SECTIONS: what comes first survives the registry's limit on a description.
    finetuned = manifest.kind == FINETUNED
    results = read_results(manifest) if finetuned else {}
    encoder = encoder_of(manifest)
    title = f"{name}: {encoder} fine-tuned for {results['title']}" if finetuned else f"{name}: a pre-trained {encoder}"
    sections = {
        "Scores": _result_rows(results, document) if finetuned else NO_SCORES,
        "Data": _data(manifest, document),
        "Limits": _limits(manifest, results, document),
        "License": _license(document.lineage.get("license")),
        "Curves": _curves(events, results, curves=curves),
        "Configuration": "```yaml\n" + yaml.safe_dump(dict(manifest.configuration), sort_keys=False) + "```",
    }
    return "\n\n".join([f"# {title}", *(f"## {section}\n\n{sections[section]}" for section in SECTIONS)]) + "\n"


def with_scores(card: str, scores: Sequence[TaskScore]) -> str:
    """Return a pre-trained model's card with the scores of its fine-tunings in it."""
    rows = [
        [score.task, score.metric.partition("/")[2], *_score_cells(score), ", ".join(kinds_of(score.known))]
        for score in scores
    ]
    head = ["task", "metric", "N", "seeds", "score", "majority", "paper", "known"]
    return _with_section(card, "Scores", format_table(head, rows, "pipe") if rows else NO_SCORES)


def with_license(card: str, license: str) -> str:
    """Return a card with another license, or with one in place of none."""
    return _with_section(card, "License", _license(license))


def _with_section(card: str, section: str, text: str) -> str:
    # Replace this section only; the others stay as they were registered.
    before, mark, rest = card.partition(f"## {section}\n\n")
    _, following, after = rest.partition("\n\n## ")
    return f"{before}{mark}{text}{following}{after}"


def description_of(card: str) -> str:
    """Shorten a card to the registry's description field: without pictures, with a note if it is cut."""
    card = card.replace(f"![curves]({CURVES_NAME})\n\n", "")
    if len(card) <= MAX_DESCRIPTION_LENGTH:
        return card
    note = f"\n\n(The whole card is the artifact {CARD_NAME}.)\n"
    return card[: MAX_DESCRIPTION_LENGTH - len(note)].rpartition("\n")[0] + note


def card_problem(card: str) -> str | None:
    """Describe what a card lacks; None if every section has content."""
    if not card.strip():
        return f"it has no {CARD_NAME}"
    for section in SECTIONS:
        _, mark, rest = card.partition(f"## {section}\n\n")
        if not mark or not rest.partition("\n\n## ")[0].strip():
            return f"its {CARD_NAME} has nothing under {section!r}"
    return None


def card_sha256(card: str) -> str:
    """Return the hash by which a card that was cut off or changed is told from the one that was written."""
    return hashlib.sha256(card.encode()).hexdigest()


def readme_problem(directory: Path) -> str | None:
    """Describe why a directory's README.md is not whole; None if it is, with the text of `write_readme` or another."""
    path = directory / README_NAME
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return f"{path}: there is none"
    except (OSError, ValueError) as error:
        return f"{path}: cannot be read ({error})"
    # Its owner may have written another text, or the header alone; one with our title has our last section.
    has_header = text.startswith("---\n")
    body = text.split("---\n", 2)[-1] if has_header else text
    is_closed = not has_header or text.count("---\n") >= 2
    encoders = "|".join(ENCODERS.values())
    title = rf"^# .*: (a pre-trained ({encoders})|({encoders}) fine-tuned for )"
    is_ours = re.search(title, body, re.MULTILINE) is not None
    if not text.strip():
        return f"{path}: is empty"
    if not is_closed or body.count("```") % 2 or (is_ours and f"\n## {SECTIONS[-1]}\n" not in body):
        return f"{path}: is cut off"
    return None


def _result_rows(results: Mapping[str, Any], document: Version) -> str:
    generated = document.generated_sample
    scores = [TaskScore.from_results(results, key, generated=generated) for key in results["metrics"]]
    starts = sorted({start for score in scores for start in score.random})
    head = ["metric", "N", "seeds", "score", *(start.replace("_", " ") for start in starts), "majority", "paper"]
    rows = [[score.metric, *_score_cells(score, *(_figure(score.random.get(s)) for s in starts))] for score in scores]
    best = f"The weights are those of the best seed: {results['main_key']} {document.score_of_weights:.1f}."
    compared = " `random` is the same search from random weights." if starts else ""
    note = f" {results['note']}" if "note" in results else ""
    return f"{format_table(head, rows, 'pipe')}\n\n{best}{compared}{note}"


def _data(manifest: Manifest, document: Version) -> str:
    names = {"content_sha256": document.content_sha256, **document.lineage}
    lines = [f"- {words}: `{names[key]}`" for key, words in LINEAGE if names.get(key)]

    # Nested counts, such as a report of defects, would not fit a line.
    counts = {key: value for key, value in manifest.counts.items() if isinstance(value, int)}
    lines += [f"- {key.replace('_', ' ')}: {value:,}" for key, value in counts.items()]
    if (score := document.exam_for_choosing) is not None:
        lines.append(f"- Exam on a few minimal pairs, for choosing a checkpoint: {score:.1f} of 100; chance is 50")
    if (exam := document.exam) is not None:
        baseline = exam.ngram_baseline
        ngram_baseline = "" if baseline is None else f"an n-gram model has {baseline:.1f}, "
        accuracy = f"{exam.accuracy:.1f} of 100, mean over kinds"
        lines.append(f"- Exam on the minimal pairs for reporting: {accuracy}; {ngram_baseline}chance is 50")
    if document.generated_sample:
        lines.append("- The text is generated: an invented encyclopedia, and tasks over it.")
    return "\n".join(lines)


def _limits(manifest: Manifest, results: Mapping[str, Any], document: Version) -> str:
    # The text is known only of a model that was pre-trained here.
    is_known = bool(document.lineage.get("dump"))
    texts = "the text passages named above and nothing else" if is_known else "texts that are not known here"
    lines = [f"It has read {texts}, with their errors, gaps and prejudices."]
    if document.generated_sample:
        lines.append(
            "Trained on generated text: its scores say that the machinery works, and nothing about a language."
        )
    if results:
        lines.append("Settings were chosen and scores taken on the same dev set, which flatters the scores a little.")
        lines.append(f"Known about this score: {describe(read_caveats(results['known']))}.")
    if results.get("degenerate"):
        lines.append("It predicts the same for every dev example: do not use it.")
    if not results:
        has_next_sentence = manifest.configuration.get("objective") != "mlm"
        judges = " and judges whether a text follows another" if has_next_sentence else ""
        lines.append(f"It fills in masked words{judges}; other uses need fine-tuning.")
    return "\n".join(f"- {line}" for line in lines)


def _license(license: str | None) -> str:
    return f"Weights: {license}." if license else "Not stated. Choose a license before publishing the weights."


def _curves(events: Sequence[Mapping[str, Any]], results: Mapping[str, Any], *, curves: bool) -> str:
    parts = [f"![curves]({CURVES_NAME})"] if curves else []

    # A fine-tuning shows the runs of its search, a pre-training its held-out evaluations.
    if results:
        _, split, metric = results["main_key"].split("/")
        runs = []
        for run in next(iter(results["initializations"].values()))["runs"]:
            score = run["scores"].get(split, {}).get(metric)
            setting = [run[key] for key in ("learning_rate", "batch_size", "epochs", "seed", "steps")]
            runs.append([*map(_cell, setting), "diverged" if score is None else f"{score:.1f}"])
        head = ["learning rate", "batch", "epochs", "seed", "steps", results["main_key"]]
        parts.append(format_table(head, runs, "pipe"))
        return "\n\n".join(parts)
    if evaluations := [event for event in events if event.get("event") == "evaluation" and event.get("metrics")]:
        stride = -(-len(evaluations) // MAX_EVALUATIONS)
        shown = evaluations[::-1][::stride][::-1]  # counted from the end, so that the last one is shown
        keys = [key for key in shown[-1]["metrics"] if key != "held_out/instances"]
        rows = [[str(event["step"]), *(_cell(event["metrics"].get(key)) for key in keys)] for event in shown]
        parts.append(format_table(["step", *keys], rows, "pipe"))
    return "\n\n".join(parts) or "No record of the training was found next to the model."


def _score_cells(score: TaskScore, *others: str) -> list[str]:
    """Return the cells that both tables of scores have, with those of random initializations after the score."""
    mean = f"{score.mean:.1f} ± {score.sd:.1f}"
    counts = [str(score.num_examples), str(score.num_seeds)]
    return [*counts, mean, *others, _figure(score.majority), _figure(score.paper)]


def _figure(value: float | None) -> str:
    return "" if value is None else f"{value:.1f}"


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
