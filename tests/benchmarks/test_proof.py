"""Proofs: their files are valid, their tables beside published lines, and text is cut."""

import pandas as pd
import pytest

from benchmarks.proof import PROOFS, Proof, first_documents, table
from bert_model.presets import preset_from_mapping, preset_path
from bert_pipeline.configuration import from_mapping, override, read_yaml


@pytest.mark.parametrize("path", sorted(PROOFS.glob("*.yaml")), ids=lambda path: path.stem)
def test_every_proof_trains_presets_and_names_rows_that_it_scores(path):
    proof = from_mapping(Proof, read_yaml(path), where=path.name)
    for changes in proof.runs.values():
        mapping = override(read_yaml(preset_path(proof.preset)), [*proof.settings, *changes])
        preset = preset_from_mapping(mapping, name=path.stem)
        for task in proof.tasks:
            assert preset.finetuning.for_task(task).learning_rates
    assert {row for line in proof.lines.values() for row in line} <= proof.rows


def test_seeds_are_a_column_beside_the_published_lines():
    proof = Proof(title="", text=(), runs={}, exams={"blimp": ""}, tasks={"rte": ""}, lines={"GPT-2": {"blimp": 65.08}})
    scores = {
        "modern 1": {"blimp": 60.0, "cola": 9.0, "rte": 55.0},
        "modern 2": {"blimp": 64.0},
        "bert": {"blimp": 61.0, "blimp: half the 95 % interval": 0.37},
    }
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table(proof, scores).splitlines()]
    assert lines[0] == ["", "modern", "bert", "GPT-2"]
    assert lines[2:] == [
        ["blimp", "62.00 ± 2.83 (2)", "61.00 (1), ± 0.4 over pairs", "65.08"],
        ["rte", "55.00 (1)", "", ""],
    ]


def test_text_is_cut_to_whole_documents(tmp_path):
    for name, texts in {"train-00000": ["one two", "three four five"], "train-00001": ["six", "seven"]}.items():
        pd.DataFrame({"id": texts, "text": texts}).to_parquet(tmp_path / f"{name}.parquet")
    cut = pd.read_parquet(first_documents(tmp_path, 6, tmp_path / "cut"))
    assert cut.to_dict("list") == {name: ["one two", "three four five", "six"] for name in ("id", "text")}
