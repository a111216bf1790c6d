"""`python -m tests.compare OLD NEW [WORK]`: do the same tiny work with two checkouts, and print what differs.

A corpus, a pre-training and a fine-tuning of every task of the catalogue, by the commands of `bert`, in WORK/old and
WORK/new (default: a temporary folder). Losses, scores, predictions, results.json and cards follow processor and
kernels, so they are no pins: only two checkouts on one machine can be compared. Exit code 1 if anything differs.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

GLUE = ("cola", "sst2", "mrpc", "stsb", "qqp", "mnli", "qnli", "rte", "wnli")
SUITES = {"glue": GLUE, "squad": ("squad1", "squad2"), "swag": ("swag",), "conll2003": ("ner", "ner_features")}
SUPERGLUE = {
    "BoolQ": ("boolq", {"question": "is it {word}", "passage": "It is {word}."}, (True, False)),
    "CB": ("cb", {"premise": "It is {word}.", "hypothesis": "It is."}, ("entailment", "contradiction", "neutral")),
    "COPA": ("copa", {"premise": "{word} fell.", "choice1": "wind", "choice2": "rain", "question": "cause"}, (0, 1)),
    "MultiRC": ("multirc", {"passage": {"text": "In {word}.", "questions": [{"idx": 0, "question": "Where?", "answers":
        [{"text": "{word}", "idx": 0, "label": 1}, {"text": "rain", "idx": 1, "label": 0}]}]}}, (None,)),
    "RTE": ("superglue_rte", {"premise": "It is {word}.", "hypothesis": "It is."}, ("entailment", "not_entailment")),
    "WiC": ("wic", {"word": "{word}", "sentence1": "a {word}", "sentence2": "{word}", "start1": 2}, (True, False)),
}  # fmt: skip
"""Folder -> task, a row of its files, and the labels that the rows have in turn."""
PHASE = {"steps": 30, "global_batch_size": 16, "learning_rate": 1e-3, "warmup_steps": 5}
PRETRAINING = {
    "model": {"preset": "tiny", "overrides": {"num_hidden_layers": 1, "hidden_size": 64, "num_attention_heads": 2}},
    "phases": [PHASE | {"max_seq_length": 64, "instances": "instances"}],
    "micro_batch_size": 8,
    "log_interval_steps": 1,
    "checkpoint_interval_steps": 10,
}
FINETUNING = ("max_seq_length=64", "doc_stride=32", "max_query_length=24", "epochs=[1]")
FINETUNING += ("seeds=[1,2]", "lstm_hidden_size=16", "batch_sizes=[16]")
OF_TIME = re.compile(r"second|time|memory|utilization|wait|created|host|process_id|mlflow|run_id|version|product_rate")
"""Keys of values that differ between any two runs."""
SHOWN = 12
"""Differences of a file that are printed."""


def work() -> None:
    """Do the work in the current folder with the checkout on the path."""
    import torch

    # Two checkouts may choose the kernels of matrix products by other rules.
    torch.backends.mkldnn.is_available = lambda: False
    from bert_model.cli import main

    Path("pretraining.json").write_text(json.dumps(PRETRAINING))  # JSON is YAML
    write_superglue(Path("superglue"))
    sizes = "--vocab-size 2000 --num-unused 3 --pad-with-unused"
    commands = [
        "sample --output sample --num-articles 120",
        "corpus sample/samplewiki-1-pages-articles.xml.bz2 --output corpus -- --workers=1",
        f"vocab corpus --output vocabulary {sizes} -- --workers=1",
        "instances corpus --vocab vocabulary --output instances --max-seq-length 64 --dupe-factor 2 -- --workers=1",
        "pretrain --config pretraining.json --output training --device cpu --experiment=",
    ]
    data = {task: f"sample/{suite}" for suite, tasks in SUITES.items() for task in tasks}
    data |= {task: "superglue" for task, *_ in SUPERGLUE.values()}
    for task, folder in data.items():
        words = f"--data {folder} --model training/model --output tasks/{task} --workers 1"
        rates = "lstm_learning_rates" if task == "ner_features" else "learning_rates"
        commands.append(f"finetune {task} {words} {' '.join(FINETUNING)} {rates}=[1e-3]")
    for command in commands:
        print(f"bert {command}", flush=True)
        if code := main(command.split()):
            sys.exit(f"bert {command}: exit code {code}")


def write_superglue(root: Path) -> None:
    for folder, (_, row, labels) in SUPERGLUE.items():
        (root / folder).mkdir(parents=True)
        for file, count in (("train.jsonl", 48), ("val.jsonl", 24)):
            with open(root / folder / file, "w", encoding="utf-8") as stream:
                for index in range(count):
                    text = json.dumps(row | {"idx": index, "label": labels[index % len(labels)]})
                    stream.write(text.replace("{word}", ("Rome", "Oslo", "Lima", "Cairo", "Bern")[index % 5]) + "\n")


def differences(old: Path, new: Path) -> Iterator[str]:
    """Yield what differs between the results in two folders: files, then their values or lines."""
    patterns = ("corpus/manifest.json", "vocabulary/*.txt", "instances/manifest.json", "training/*.jsonl")
    patterns += ("training/model/*.json", "tasks/[!.]*/*.json", "tasks/*/predictions/*", "**/README.md")
    names = sorted({path.relative_to(root) for root in (old, new) for one in patterns for path in root.glob(one)})
    for name in names:
        one, other = (leaves(root / name) for root in (old, new))
        changed = [key for key in dict.fromkeys([*one, *other]) if one.get(key) != other.get(key)]
        for key in changed[:SHOWN]:
            yield f"{name}: {key}: {one.get(key, 'nothing')} -> {other.get(key, 'nothing')}"
        if len(changed) > SHOWN:
            yield f"{name}: {len(changed) - SHOWN:,} more of {len(one):,} values differ"


def leaves(path: Path) -> dict[str, Any]:
    """Return the values of a file by their path, of text its lines; {} if there is none."""
    if not path.is_file():
        return {}
    lines = path.read_text(encoding="utf-8").splitlines()
    if path.suffix == ".json":
        document = json.loads("\n".join(lines))
        return dict(flat(document.get("content", document) if path.name == "manifest.json" else document))
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in lines]
        # A checkpoint is logged when it is written, between any two steps.
        return dict(
            flat({f"{row['event']} {row.get('step', '')}": row for row in rows} if "event" in rows[0] else rows)
        )
    return {f"line {number}": line for number, line in enumerate(lines, start=1) if not OF_TIME.search(line.lower())}


def flat(value: Any, where: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, (dict, list)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if not OF_TIME.search(str(key)):
                yield from flat(item, f"{where}.{key}" if where else str(key))
    else:
        yield where, value


def compare(old: Path, new: Path, place: Path) -> int:
    for name, checkout in (("old", old), ("new", new)):
        folder = place / name
        folder.mkdir(parents=True)
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("BERT_", "MLFLOW_"))}
        environment |= {
            "PYTHONPATH": str(checkout.resolve()),
            "BERT_HOME": str(folder / "home"),
            "OMP_NUM_THREADS": "1",
        }
        print(f"{name}: {checkout}; its log is {folder / 'log'}", flush=True)
        with open(folder / "log", "w", encoding="utf-8") as log:
            command = [sys.executable, str(Path(__file__).resolve()), "--work"]
            if subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=log, check=False).returncode:
                sys.exit("".join((folder / "log").read_text(encoding="utf-8").splitlines(keepends=True)[-5:]))
    found = list(differences(place / "old", place / "new"))
    print(*found, f"{len(found)} differences" if found else "no difference", sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    if sys.argv[1:] == ["--work"]:
        work()
    elif len(sys.argv) not in (3, 4):
        sys.exit(__doc__)
    else:
        with tempfile.TemporaryDirectory() as scratch:
            sys.exit(compare(*(Path(word) for word in [*sys.argv[1:], scratch][:3])))
