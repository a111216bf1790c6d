"""Proofs in public units: trainings on a stated amount of public text, beside published figures on the same sets.

A proof is a YAML file in benchmarks/proofs: text, trainings, minimal pairs and tasks, with the lines to beat. All of it
takes hours; the program may be stopped at any time and continues where it was.
"""

import dataclasses
import json
import statistics
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.duel import OurSide, fight, held_out_losses, make_instances, write_test
from benchmarks.harness import describe_machine, errors_as_exit_codes, markdown_table, program
from benchmarks.inputs import load_or_make
from bert_model.finetuning.finetune import finetune
from bert_model.kinds.scores import score_files
from bert_model.presets import RunPreset, preset_from_mapping, preset_path, with_phases_in
from bert_model.training.home import bert_home
from bert_model.zero_shot.exam import take_exam
from bert_model.zero_shot.result import ExamResult
from bert_pipeline.atomic import write_text_durably
from bert_pipeline.configuration import configuration, from_mapping, override, read_yaml
from bert_pipeline.corpus.job import build_corpus
from bert_pipeline.exam.pairs import read_pairs
from bert_pipeline.manifest import Manifest
from bert_pipeline.signals import exiting_on_signals
from bert_pipeline.tasks.catalogue import get_task
from bert_pipeline.tasks.task import load_task_data
from bert_pipeline.vocabulary.tokenizer import Tokenizer

PROOFS = Path(__file__).parent / "proofs"
HELD_OUT = "held-out loss, nats a masked token"
HALF_INTERVAL = ": half the 95 % interval"
"""End of a row's name: what it may differ by for the choice of pairs."""


@configuration
class Proof:
    """What is trained, on what, and what it is scored on. Paths are below --data."""

    title: str
    """What the table shows."""
    directory: str = ""
    """Where text and trainings are kept: those of equal names serve every proof that names it. Default: its own."""
    text: tuple[str, ...]
    """Sources of the corpus, such as parquet:wikipedia."""
    max_words: int = 0
    """Words of the text, counted between blanks, equally many of each source; 0 for all of them."""
    preset: str = "cpu-3h"
    """Settings of everything."""
    settings: tuple[str, ...] = ()
    """Changes of the preset, as key=value."""
    runs: dict[str, tuple[str, ...]]
    """Trainings and their own changes; those whose names differ in the last word, the seed, are a column."""
    exams: dict[str, str] = dataclasses.field(default_factory=dict)
    """Minimal pairs, by name."""
    tasks: dict[str, str] = dataclasses.field(default_factory=dict)
    """Folders, or archives, of the files of tasks, by their name or YAML file in proofs/tasks."""
    lines: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)
    """Published figures, by who published them and the row of the table."""

    @property
    def rows(self) -> set[str]:
        """Rows of the table."""
        return {HELD_OUT, *self.exams, *(f"{name}, mean over pairs" for name in self.exams), *self.tasks}


def train(proof: Proof, name: str, corpus: Path, directory: Path, slice_seconds: float) -> RunPreset:
    """Train one run to its end in `directory`; return its settings."""
    path = preset_path(proof.preset)
    preset = preset_from_mapping(override(read_yaml(path), [*proof.settings, *proof.runs[name]]), name=path.stem)
    rows = "" if preset.instances.pairs == "none" else f"-{preset.instances.pairs}"
    instances = make_instances(preset, corpus, corpus.parent, rows)
    directory.mkdir(parents=True, exist_ok=True)
    config = with_phases_in(preset.pretraining, {length: made.path for length, made in instances.items()})
    fight([OurSide(directory, config, preset.launch.processes_per_node)], slice_seconds, directory)
    return preset


def score(proof: Proof, preset: RunPreset, data: Path, corpus: Manifest, directory: Path) -> dict[str, float]:
    """Return the scores of a trained run by row of the table; those that are in scores.json are not made again."""
    path, model = directory / "scores.json", directory / "ours" / "model"
    scores: dict[str, float] = json.loads(path.read_text()) if path.is_file() else {}

    def keep(row: str, value: float, half_interval: float | None = None) -> None:
        scores[row] = value
        if half_interval is not None:
            scores[f"{row}{HALF_INTERVAL}"] = half_interval
        write_text_durably(path, json.dumps(scores, indent=1) + "\n")
        print(f"{directory.name}: {row} {value:.3f}", file=sys.stderr, flush=True)

    if HELD_OUT not in scores:
        test = corpus.path.parent / "test.npz"
        write_test(corpus, Tokenizer.from_directory(model), preset.sequence_lengths[-1], test)
        losses, counts = held_out_losses(model, test)
        keep(HELD_OUT, float(losses.sum() / counts.sum()))
    for name, pairs in proof.exams.items():
        taken = directory / f"{name}.json"
        if not taken.is_file():
            write_text_durably(taken, json.dumps(take_exam(model, read_pairs(data / pairs)).to_json()) + "\n")
        result = ExamResult.from_json(json.loads(taken.read_text()))
        over_pairs = result.over_pairs()
        keep(f"{name}, mean over pairs", over_pairs.accuracy, (over_pairs.high - over_pairs.low) / 2)
        keep(name, result.mean)  # over kinds: some have most of the pairs
    for name, files in proof.tasks.items():
        own = PROOFS / "tasks" / f"{name}.yaml"
        if name not in scores:
            task = get_task(str(own) if own.is_file() else name)
            folder = unpacked(data / files, corpus.path.parent)
            examples = load_task_data(task, folder, preset.finetuning.dev_fraction)
            settings = preset.finetuning.for_task(task)
            tuned = finetune(examples, model, directory / name, settings, experiment="", replace=True)
            value = float(tuned.metrics[tuned.main_key]["mean"])
            if own.is_file():  # scored on a file that no choice was made on, by the best seed
                ((split, file),) = task.test_files.items()
                predictions = tuned.path / "predictions" / f"{split}.jsonl"
                value = score_files(task, folder / task.folder / file, predictions)[task.main_metric]
            keep(name, value)
    return scores


def unpacked(path: Path, directory: Path) -> Path:
    """Return a folder of files, or that of an archive, which is unpacked once."""
    if path.suffix != ".zip":
        return path
    folder = directory / path.stem
    if not folder.exists():
        with zipfile.ZipFile(path) as archive:
            archive.extractall(folder)
        for file in [*folder.rglob("*.valid.*")]:  # beside the training file it would be taken for its dev set
            file.rename((folder / f"test-{file.parent.name}").with_suffix(file.suffix))
    return folder


def first_documents(folder: Path, max_words: int, output: Path) -> Path:
    """Write the first documents of a folder of Parquet files that have at most so many words; return where."""
    documents = pd.concat([pd.read_parquet(file) for file in sorted(folder.glob("*.parquet"))], ignore_index=True)
    kept = documents[documents["text"].map(lambda text: len(text.split())).cumsum() <= max_words]
    output.mkdir(parents=True, exist_ok=True)
    kept.to_parquet(output / "train-00000.parquet")
    return output


def table(proof: Proof, scores: dict[str, dict[str, float]]) -> str:
    """Return the scores of the columns, with their deviation over seeds and their number, beside published lines."""
    columns: dict[str, list[dict[str, float]]] = {}
    for name, own in scores.items():
        columns.setdefault(name.rpartition(" ")[0] or name, []).append(own)
    rows = []
    for row in (row for row in next(iter(scores.values())) if row in proof.rows):
        cells = []
        for seeds in columns.values():
            values = [own[row] for own in seeds if row in own]
            halves = [own[half] for own in seeds if (half := row + HALF_INTERVAL) in own]
            deviation = f" ± {statistics.stdev(values):.2f}" if len(values) > 1 else ""
            pairs = f", ± {statistics.mean(halves):.1f} over pairs" if halves else ""
            cells.append(f"{statistics.mean(values):.2f}{deviation} ({len(values)}){pairs}" if values else "")
        rows.append((row, *cells, *(f"{line[row]:g}" if row in line else "" for line in proof.lines.values())))
    return markdown_table(("", *columns, *proof.lines), rows)


@errors_as_exit_codes
def main(arguments: Sequence[str] | None = None) -> int:
    """Train and score what is missing, and print the table after each training."""
    parser = program("proof", __doc__)
    parser.add_argument("proof", help="name of a file in benchmarks/proofs, such as p1, or a YAML file")
    parser.add_argument("--data", type=Path, required=True, help="folder of text, pairs and task files")
    parser.add_argument("--slice", type=float, default=600.0, help="seconds between checkpoints (default: %(default)g)")
    args = parser.parse_args(arguments)
    path = PROOFS / f"{args.proof}.yaml" if (PROOFS / f"{args.proof}.yaml").is_file() else Path(args.proof)
    proof = from_mapping(Proof, read_yaml(path), where=str(path))
    directory = bert_home() / "proofs" / (proof.directory or path.stem)
    corpus_settings = preset_from_mapping(override(read_yaml(preset_path(proof.preset)), proof.settings), name="proof")
    sources = []
    for kind, colon, place in (text.rpartition(":") for text in proof.text):
        folder = args.data / place
        if proof.max_words:
            folder = first_documents(folder, proof.max_words // len(proof.text), directory / "text" / folder.stem)
        sources.append(f"{kind}{colon}{folder}")
    corpus = load_or_make(directory / "corpus", lambda output: build_corpus(sources, output, corpus_settings.corpus))
    print(describe_machine(("torch", "tokenizers")))
    print(f"{proof.title}; {corpus.counts['words']:,} words of {corpus.counts['documents']:,} documents", flush=True)
    scores = {}
    with exiting_on_signals():
        for name in proof.runs:
            preset = train(proof, name, corpus.path, directory / name.replace(" ", "-"), args.slice)
            scores[name] = score(proof, preset, args.data, corpus, directory / name.replace(" ", "-"))
            print(f"\n{table(proof, scores)}", flush=True)  # of the trainings so far: the next one takes hours
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
