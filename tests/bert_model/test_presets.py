"""Whole-run presets: strict validation, and all of them load."""

import dataclasses
from pathlib import Path

import pytest
import torch
import yaml

from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import PRESET_SIZES
from bert_model.presets import (
    load_configuration,
    load_preset,
    preset_from_mapping,
    preset_names,
    preset_path,
    with_phases_in,
)
from bert_model.pretraining.run import cost_of_dropout
from bert_pipeline.beam.options import pipeline_options
from bert_pipeline.configuration import override, read_yaml, to_mapping
from bert_pipeline.errors import ConfigurationError, UsageError
from bert_pipeline.tasks.catalogue import TASKS
from workflows.lib.launchpad import asset_configs

PHASE = {"max_seq_length": 64, "steps": 10, "warmup_steps": 1}


def write(path: Path, **sections) -> str:
    path.write_text(yaml.safe_dump({"pretraining": {"phases": [PHASE]}, **sections}), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_loads_with_a_description(name):
    preset = load_preset(name)
    assert preset.name == name
    assert preset.description.endswith(".")
    assert preset.sequence_lengths


def test_paper_schedule_uses_short_sequences_for_90_percent_of_steps():
    short, long = load_preset("paper-base").pretraining.phases
    assert (short.max_seq_length, long.max_seq_length) == (128, 512)
    assert short.steps == 9 * long.steps
    assert short.steps + long.steps == 1_000_000
    assert load_preset("paper-large").pretraining.model.preset == "large"


def test_one_gpu_reads_half_a_million_tokens_a_step_without_pairs_and_dropout():
    preset = load_preset("one-gpu")
    config = preset.pretraining
    assert [phase.global_batch_size * phase.max_seq_length for phase in config.phases] == [2**19, 2**19]
    assert (config.objective, preset.instances.pairs, config.budget_seconds) == ("mlm", "none", 24 * 3600)
    model = config.model.resolve(vocab_size=30522)
    assert model.hidden_dropout_prob == model.attention_probs_dropout_prob == 0.0
    assert cost_of_dropout(model, torch.device("cuda")) == ""
    # The paper's dropout in fine-tuning, and its own pre-training in the other presets.
    for task in TASKS:
        runs = preset.finetuning.for_task(task)
        assert (runs.hidden_dropout, runs.classifier_dropout) == (0.1, 0.1)
    paper = load_preset("paper-base").pretraining
    assert paper.objective == "mlm_nsp"
    message = cost_of_dropout(paper.model.resolve(vocab_size=30522), torch.device("cuda"))
    assert "attention_probs_dropout_prob=0.1: the kernel" in message
    assert cost_of_dropout(paper.model.resolve(vocab_size=30522), torch.device("cpu")) == ""


def test_unknown_preset_names_the_nearest():
    with pytest.raises(UsageError, match=r"did you mean 'demo'"):
        load_preset("demmo")


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"corpsu": {}}, r"unknown key 'corpsu' \(did you mean 'corpus'"),
        ({"vocabulary": {"vocab_sise": 1}}, r"vocabulary: unknown key 'vocab_sise' \(did you mean 'vocab_size'"),
        ({"exam": {"pairs_per_kin": 5}}, r"exam: unknown key 'pairs_per_kin' \(did you mean 'pairs_per_kind'"),
        ({"finetuning": {"default": {"epochz": [1.0]}}}, r"unknown key 'epochz' \(did you mean 'epochs'"),
        ({"finetuning": {"tasks": {"sst2": {"seeds": []}}}}, r"seeds"),
        ({"finetuning": {"tasks": {"sst3": {}}}}, r"sst3"),
        ({"finetuning": {"dev_fraction": 1.0}}, r"dev_fraction: found 1.0"),
        ({"launch": {"nodes": 2}}, r"rendezvous_endpoint"),
        ({"instances": {"max_seq_length": 64}}, r"instances.max_seq_length: found 64; set that of each phase"),
        ({"instances": {"pairs": "none"}}, r"instances.pairs: found 'none' with pretraining.objective='mlm_nsp'"),
    ],
)
def test_unknown_keys_and_bad_values_are_refused_by_name(tmp_path, sections, message):
    with pytest.raises(ConfigurationError, match=message):
        load_preset(write(tmp_path / "p.yaml", **sections))


@pytest.mark.parametrize(("section", "message"), [({"model": "tiny"}, "model: found 'tiny'"), (None, ": found None")])
def test_pretraining_that_is_no_mapping_is_refused(tmp_path, section, message):
    path = write(tmp_path / "p.yaml", pretraining=section)
    for load in (load_preset, load_configuration):
        with pytest.raises(ConfigurationError, match=f"{message}, expected a mapping"):
            load(path)


def test_task_settings_override_default_and_paper(tmp_path):
    sections = {"finetuning": {"default": {"epochs": [2.0], "seeds": [5]}, "tasks": {"sst2": {"epochs": [9.0]}}}}
    runs = load_preset(write(tmp_path / "p.yaml", **sections)).finetuning
    assert runs.for_task("sst2").epochs == (9.0,)
    assert runs.for_task("sst2").seeds == (5,)
    assert runs.for_task("squad1").epochs == (2.0,)
    assert runs.for_task("squad1").max_seq_length == 384
    assert runs.for_task("cola").compare_random
    own = dataclasses.replace(TASKS["ner"], name="own")
    assert (runs.for_task(own).batch_sizes, runs.for_task(own).seeds) == ((16,), (5,))

    # A task of one's own may have settings of its own too.
    sections["finetuning"]["tasks"] = {"own": {"max_seq_length": 256}}
    runs = load_preset(write(tmp_path / "p.yaml", **sections)).finetuning
    assert (runs.for_task(own).max_seq_length, runs.for_task(own).seeds) == (256, (5,))


@pytest.mark.parametrize("name", ["paper-base", "paper-large"])
def test_paper_presets_read_documents_and_nothing_else_does(name):
    runs = load_preset(name).finetuning
    for task in ("ner", "ner_features"):
        assert (runs.for_task(task).document_context, runs.for_task(task).max_seq_length) == (True, 512)
    assert not runs.for_task("cola").document_context
    assert not load_preset("one-gpu").finetuning.for_task("ner").document_context


def test_preset_round_trips_through_yaml(tmp_path):
    preset = load_preset("demo")
    path = tmp_path / "demo.yaml"
    mapping = to_mapping(preset)
    del mapping["name"]
    path.write_text(yaml.safe_dump(mapping), encoding="utf-8")
    assert load_preset(str(path)) == preset


def test_runner_of_a_preset_reaches_the_assets_of_the_data(tmp_path):
    options = {"flink_master": "host:8081", "parallelism": 4, "save_main_session": True, "streaming": False}
    sections = {"beam": {"runner": "FlinkRunner", "options": options}, "beam_options": ["--environment_type=EXTERNAL"]}
    configs = asset_configs(load_preset(write(tmp_path / "p.yaml", **sections)))
    expected = ["--runner=FlinkRunner", "--flink_master=host:8081", "--parallelism=4", "--save_main_session"]
    for asset in ("corpus", "vocabulary", "instances"):
        assert configs[asset]["beam_options"] == [*expected, "--environment_type=EXTERNAL"]
    assert pipeline_options(configs["corpus"]["beam_options"]).get_all_options()["flink_master"] == "host:8081"


def test_phases_read_the_instances_of_their_length(tmp_path):
    config = load_preset("paper-base").pretraining
    phases = with_phases_in(config, {128: tmp_path / "128", 512: tmp_path / "512"}).phases
    assert [Path(phase.instances).name for phase in phases] == ["128", "512"]


def test_three_hour_preset_is_small_and_drops_near_duplicates():
    preset = load_preset("cpu-3h")
    config = preset.pretraining.model.resolve(vocab_size=preset.vocabulary.vocab_size)
    with torch.device("meta"):
        model = BertForPreTraining(config)
    assert sum(parameter.numel() for parameter in model.parameters()) < 12_000_000
    assert preset.pretraining.budget_seconds == 3 * 3600
    assert preset.corpus.near_duplicates == "drop"


@pytest.mark.parametrize("name", ["laptop", "cpu-3h", "one-gpu"])
def test_presets_are_modern_and_one_key_gives_berts_architecture(name):
    key = "model.architecture=bert"
    configs = {"modern": load_configuration(name), "bert": load_configuration(name, [key])}
    rates = {"laptop": (2e-3, 2e-3), "cpu-3h": (1.5e-3, 1.5e-3), "one-gpu": (8e-4, 5e-4)}
    for (architecture, config), rate in zip(configs.items(), rates[name]):
        assert (config.model.architecture, config.objective) == (architecture, "mlm")
        model = config.model.resolve(vocab_size=8192, max_length=512)
        size = PRESET_SIZES[config.model.preset]
        assert (model.num_hidden_layers, model.hidden_size, model.num_attention_heads) == size
        assert model.initializer_range == (0.06 if (name, architecture) == ("cpu-3h", "bert") else 0.02)
        assert model.hidden_dropout_prob == model.attention_probs_dropout_prob == 0
        assert {phase.learning_rate for phase in config.phases} == {rate}
    given = load_configuration(name, [key, "model.overrides.initializer_range=0.03"])
    assert given.model.resolve(vocab_size=8192).initializer_range == 0.03

    # The same in a preset of one's own, with next sentences.
    pairs = ["pretraining.objective=mlm_nsp", "instances.pairs=next_sentence"]
    own = preset_from_mapping(override(read_yaml(preset_path(name)), [f"pretraining.{key}", *pairs]), name=name)
    assert own.pretraining == dataclasses.replace(configs["bert"], objective="mlm_nsp")
