"""Write a small home with the code of the revision that runs it, as a compressed tar.

    cd CHECKOUT && PYTHONPATH=. .venv/bin/python make_home.py TARGET.tar.xz

The archive holds `backup/`, made by `python -m workflows.backup create` from a BERT_HOME with registered models, and
`data/`: an artefact directory of each kind, a finished and a preempted pre-training, a finished and an interrupted
fine-tuning.
"""

import os
import random
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

LICENCE = "CC0-1.0"
GOOD, BAD = ("fine", "lovely", "great", "sweet"), ("awful", "dull", "bleak", "sour")
NOUNS, NAMES, PLACES = ("film", "story", "song", "meal"), ("anna", "boris", "clara"), ("rome", "oslo", "lima")

PRETRAINING = """
model: {preset: tiny, overrides: {num_hidden_layers: 1, hidden_size: 16, num_attention_heads: 2, intermediate_size: 32,
  max_position_embeddings: 32, initializer_range: 0.1}}
phases: [{max_seq_length: 32, steps: 20, global_batch_size: 8, learning_rate: 5.0e-3, warmup_steps: 2,
  instances: data/instances}]
micro_batch_size: 8
log_interval_steps: 1
evaluation_interval_steps: 10
checkpoint_interval_steps: 10
keep_last: 1
"""
SETTINGS = ["max_seq_length=32", "learning_rates=[3e-3]", "batch_sizes=[8]", "epochs=[15]"]


def main(target: Path) -> None:
    """Make everything below a temporary directory, and pack it."""
    with tempfile.TemporaryDirectory(prefix="bert-home-") as place:
        os.chdir(place)
        os.environ["BERT_HOME"] = str(Path(place) / "home")
        make_data(random.Random(1))
        register()
        run_python("-m", "workflows.backup", "create", "backup")
        with tarfile.open(target, "w:xz", preset=9) as archive:
            for name in ("backup", "data", "run.yaml"):
                archive.add(name, filter=without_owner)
    print(f"{target}: {target.stat().st_size:,} bytes")


def make_data(rng: random.Random) -> None:
    """One step after the other, through the `bert` command where there is one."""
    documents = [[sentence(rng) for _ in range(6)] for _ in range(60)]
    Path("prose.txt").write_text("\n\n".join("\n".join(document) for document in documents) + "\n")
    Path("run.yaml").write_text(PRETRAINING)
    for split, count in (("train", 64), ("dev", 20)):
        folder = Path("data/glue/SST-2")
        folder.mkdir(parents=True, exist_ok=True)
        texts = [f"the {rng.choice(NOUNS)} was {rng.choice((BAD, GOOD)[index % 2])} ." for index in range(count)]
        rows = [f"{text}\t{index % 2}\n" for index, text in enumerate(texts)]
        (folder / f"{split}.tsv").write_text("sentence\tlabel\n" + "".join(rows))
    bert("corpus", "text:prose.txt", "--output", "data/corpus")
    bert(*["vocab", "data/corpus", "--output", "data/vocabulary", "--vocab-size", "120", "--num-unused", "3"])
    instances = "instances data/corpus --vocab data/vocabulary --output data/instances --max-seq-length 32"
    bert(*instances.split(), "--dupe-factor", "1")
    preempted("data/preempted", step=7)
    bert("pretrain", "--config", "run.yaml", "--output", "data/pretraining", "--device", "cpu")
    inputs = ["--data", "data/glue", "--model", "data/pretraining/model", "--workers", "1"]
    words = ["finetune", "sst2", *inputs, "--output"]
    bert(*words, "data/finetuned", *SETTINGS, "seeds=[1]")
    interrupted([*words, "data/interrupted", *SETTINGS, "seeds=[1,2]"])


def sentence(rng: random.Random) -> str:
    if rng.random() < 0.5:
        return f"The {rng.choice(NOUNS)} was {rng.choice(GOOD + BAD)}, and {rng.choice(NAMES).title()} was there."
    return f"{rng.choice(NAMES).title()} lives in {rng.choice(PLACES).title()} and likes the {rng.choice(NOUNS)}."


def preempted(output: str, *, step: int) -> None:
    """Pre-train until a scheduler asks for the machine after one of the steps."""
    code = f"""
import os, signal
from bert_model.pretraining import load_configuration, pretrain
stop = lambda finished: os.kill(os.getpid(), signal.SIGTERM) if finished == {step} else None
print(pretrain(load_configuration("run.yaml", []), "{output}", device="cpu", after_step=stop).status)
"""
    run_python("-c", code)


def interrupted(words: list[str]) -> None:
    """Fine-tune until the first trial is reported; the second one may end meanwhile."""
    code = f"""
from bert_model import cli
from bert_model.finetuning.display import TrialDisplay
def interrupt(*progress):
    raise KeyboardInterrupt
TrialDisplay.finished = interrupt
assert cli.main({words}) == 130
"""
    run_python("-c", code)


def register() -> None:
    """Register both models; the fine-tuned one becomes champion."""
    code = f"""
from bert_model import registry
tags = {{"licence": "{LICENCE}", "dump": "prose-1"}}
registry.register("data/pretraining/model", "bert-tiny", tags=tags)
registry.register("data/finetuned", "bert-tiny-sst2", tags=tags)
"""
    run_python("-c", code)
    bert("promote", "bert-tiny-sst2")


def bert(*words: str) -> None:
    """Run the `bert` command of this revision."""
    run_python("-c", "import sys; from bert_model.cli import main; sys.exit(main())", *words)


def run_python(*words: str) -> None:
    subprocess.run([sys.executable, *words], check=True)


def without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    os.environ["PYTHONPATH"] = str(Path.cwd())
    main(Path(sys.argv[1]).resolve())
