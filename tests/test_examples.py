"""The scripts of examples/ run from end to end."""

import os
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent


def test_own_wiki_ends_with_a_model_that_answers(tmp_path):
    preset = yaml.safe_load((ROOT / "bert_model" / "presets" / "demo.yaml").read_text(encoding="utf-8"))
    preset |= {"sample": {"num_articles": 120}, "corpus": {"held_out_per_mille": 100}}
    for phase in preset["pretraining"]["phases"]:
        phase |= {"steps": 4, "warmup_steps": 2}
    preset["finetuning"] = {"comparison": False, "default": {**preset["finetuning"]["default"], "seeds": [1]}}
    preset["finetuning"]["default"] |= {"learning_rates": [1.0e-4], "epochs": [0.2]}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(preset), encoding="utf-8")

    command = [sys.executable, ROOT / "examples" / "own_wiki.py", "--preset", "small.yaml", "--license", "cc0-1.0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "BERT_HOME": str(tmp_path / "home")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "mean over 4 kinds" in done.stdout
    assert "bert-tiny-sst2 version 1" in done.stdout
    answers = [line for line in done.stdout.splitlines() if line.startswith("models:/bert-tiny-sst2@")]
    assert len(answers) == 3
    assert all("'label'" in answer for answer in answers), answers
    assert (tmp_path / "own_wiki" / "training" / "model" / "manifest.json").is_file()
