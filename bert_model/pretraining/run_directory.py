"""Run directory of a pre-training: identity, lock, and the initial or resumed state."""

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from safetensors.torch import load_file
from torch.optim import Optimizer

from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import CONFIG_NAME, BertConfig
from bert_model.model.initialization import new_model
from bert_model.model.weights import load_model, weight_files
from bert_model.pretraining.batch import ALIGNED_LENGTH
from bert_model.pretraining.checkpoint import OPTIMIZER_NAME, restore
from bert_model.pretraining.config import INITIAL_SIZE, PretrainingConfig
from bert_model.pretraining.fast_exam import input_of_pairs, pairs_for_choosing
from bert_model.pretraining.phases import check_vocabularies
from bert_model.training.distributed import Group
from bert_model.training.gradients import resolve_data_parallel, shard_parameters
from bert_model.training.metrics_log import set_log_aside
from bert_model.training.optimizer import build_optimizer, load_optimizer_tensors
from bert_pipeline.atomic import replace_text
from bert_pipeline.configuration import to_mapping
from bert_pipeline.errors import ArtifactError, ConfigurationError, UsageError
from bert_pipeline.hashes import content_sha256, file_sha256
from bert_pipeline.manifest import Manifest, input_of, load_manifest
from bert_pipeline.storage import without_secrets
from bert_pipeline.vocabulary.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

MODEL_KIND = "pretrained_model"
CONFIGURATION_NAME = "configuration.json"
LOCK_NAME = ".lock"

# Keys on which the weights do not depend: how often a run is logged, evaluated and saved. How gradients are summed
# decides the last bits only, as the number of ranks does, so a run may change it.
MONITORING_KEYS = (
    "log_interval_steps",
    "evaluation_interval_steps",
    "evaluation_max_instances",
    "checkpoint_interval_steps",
    "keep_last",
    "keep_every_steps",
    "exam",
    "exam_pairs",
    "upload_checkpoints",
    "timeout_seconds",
    "data_parallel",
    "activation_checkpointing",
)


def identity(config: PretrainingConfig, manifests: Sequence[Manifest]) -> dict[str, Any]:
    """Return what the weights of a run depend on: the configuration without paths, and the hashes of its inputs.

    `manifests` are those of the phases' instance directories, in order.
    """
    mapping = to_mapping(config)
    for key in MONITORING_KEYS:
        del mapping[key]
    if config.model.architecture == "bert":  # as runs were described when there was no other
        del mapping["model"]["architecture"]

    # Directories may be moved: what they contain counts, as hashes.
    for phase in mapping["phases"]:
        del phase["instances"]
    inputs: dict[str, Any] = {f"instances_{index}": input_of(manifest) for index, manifest in enumerate(manifests)}
    if mapping.pop("initial_model"):
        directory = Path(config.initial_model)
        files = [*weight_files(directory), directory / CONFIG_NAME]
        # A restored optimizer changes every weight, so its file belongs to the identity.
        if config.initial_optimizer == "restored":
            if not (directory / OPTIMIZER_NAME).is_file():
                raise ConfigurationError(
                    f"initial_optimizer: found 'restored', but {directory / OPTIMIZER_NAME} does not exist; only the "
                    "checkpoints of a run hold it"
                )
            files.append(directory / OPTIMIZER_NAME)
        hashes = {path.name: file_sha256(path) for path in files}
        inputs["initial_model"] = {"name": ", ".join(hashes), "sha256": content_sha256(hashes)}
    # The pairs decide which weights are published, not which are computed.
    if config.choose == "exam":
        inputs["exam"] = input_of_pairs(pairs_for_choosing(config.exam, config.exam_pairs))
    return {"configuration": mapping, "inputs": inputs}


def training_id(config: PretrainingConfig, manifests: Sequence[Manifest]) -> str:
    """Return the name of a run directory: the first 16 hexadecimal digits of the hash of the run's identity."""
    return content_sha256(identity(config, manifests))[:16]


def open_directory(
    output: Path, config: PretrainingConfig, described: dict[str, Any], *, resume: bool, allow_changes: bool
) -> Literal["new", "unfinished", "finished"]:
    """Return the status of a run directory, after comparing its configuration, or writing that of a new run."""
    path = output / CONFIGURATION_NAME
    status: Literal["new", "unfinished"] = "new"
    if not path.is_file():
        if others := [entry.name for entry in output.iterdir() if entry.name != LOCK_NAME]:
            raise ArtifactError(f"{output}: holds {others[0]!r} but no {CONFIGURATION_NAME}; give a new directory")
    elif not resume:
        if any((output / "checkpoints").glob("step-*")) or (output / "model").exists():
            raise UsageError(f"{output}: holds a run already; add --resume to continue it, or give a new directory")
        # It stopped before its first checkpoint. Another configuration is another run, with a log and an MLflow run of
        # its own.
        with contextlib.suppress(ValueError, KeyError, TypeError):
            if list(_differences(json.loads(path.read_text(encoding="utf-8"))["identity"], described)):
                set_log_aside(output)
    else:  # an existing run: its identity must be the same
        status = "unfinished"
        try:
            stored = json.loads(path.read_text(encoding="utf-8"))
            differences = list(_differences(stored["identity"], described))
        except (ValueError, KeyError, TypeError) as error:
            raise ArtifactError(f"{path}: not the configuration of a run ({error}); give a new directory") from error
        if differences and not allow_changes:
            raise ConfigurationError(
                f"{output}: the run was started with another configuration: {'; '.join(differences)}; restore the old "
                "values, give a new directory, or add --allow-changes"
            )
        if differences:
            logger.warning("continuing a run that was started with another configuration: %s", "; ".join(differences))
        elif (output / "model").is_dir():
            # A damaged model is written again from the last checkpoint.
            with contextlib.suppress(ArtifactError):
                model = load_manifest(output / "model", kind=MODEL_KIND, verify="sha256")
                # After a change, the model is that of the former configuration until the run has finished again.
                if not list(_differences(model.configuration, described["configuration"])):
                    return "finished"
    if status == "new":
        write_configuration(output, config, described)
    return status


def write_configuration(output: Path, config: PretrainingConfig, described: Mapping[str, Any]) -> None:
    """Write what the next resume is compared with: of a resumed run when nothing can refuse its changes any more."""
    # Paths, logging and evaluation are not part of the identity and may have changed.
    mapping = to_mapping(config)
    for phase in mapping["phases"]:
        phase["instances"] = without_secrets(phase["instances"])
    document = {"configuration": mapping, "identity": described}
    replace_text(output / CONFIGURATION_NAME, json.dumps(document, indent=1, sort_keys=True) + "\n")


def _differences(stored: Any, current: Any, key: str = "") -> Iterator[str]:
    """Yield "key: was …, is …" for every leaf in which two JSON documents differ."""
    if isinstance(stored, Mapping) and isinstance(current, Mapping):
        for name in sorted({*stored, *current}):
            yield from _differences(stored.get(name), current.get(name), f"{key}.{name}" if key else str(name))
    elif isinstance(stored, list) and isinstance(current, list) and len(stored) == len(current):
        for index, (old, new) in enumerate(zip(stored, current)):
            yield from _differences(old, new, f"{key}.{index}")
    elif stored != current:
        yield f"{key}: was {stored!r}, is {current!r}"


def initialize_or_resume(
    config: PretrainingConfig, checkpoint: Path | None, tokenizer: Tokenizer, group: Group
) -> tuple[BertForPreTraining, Optimizer, dict[str, Any], str]:
    """Build model and optimizer from random weights, the initial model or a checkpoint; the same on every rank.

    Returns them, the training state of the checkpoint ({} for a new run), and for the log where the values come from.
    """
    model, origin = _initial_model(config, tokenizer)
    longest = max(phase.max_seq_length for phase in config.phases)
    positions = model.config.max_position_embeddings
    step = 1 if group.device.type == "cpu" else ALIGNED_LENGTH  # to which batches are padded
    needed = -(-longest // step) * step
    if needed > positions:
        rounded = f", for which a GPU needs {needed} positions" if needed > longest else ""
        raise ConfigurationError(
            f"phases: found max_seq_length {longest}{rounded}, but the model has only {positions} positions"
        )
    lacks_pairs = config.objective == "mlm" and config.model.architecture == "bert"
    if lacks_pairs:  # pooler and NSP head get no gradient
        model.get_submodule("bert.pooler").requires_grad_(False)
        model.cls.seq_relationship.requires_grad_(False)

    model.bert.recomputes_blocks = config.activation_checkpointing

    # Sharding replaces the parameters, so the optimizer is built afterwards.
    model.to(group.device)
    data_parallel = resolve_data_parallel(config.data_parallel, group)
    if data_parallel == "fsdp":
        shard_parameters(model, group)

    # The optimizer of the initial model is loaded first: a checkpoint of this run replaces weights and optimizer state.
    optimizer = build_optimizer(model, config.optimizer, config.phases[0].learning_rate)
    if config.initial_optimizer == "restored":
        load_optimizer_tensors(model, optimizer, load_file(Path(config.initial_model) / OPTIMIZER_NAME))
    state: dict[str, Any] = {}
    if checkpoint is not None:
        state = restore(checkpoint, model, optimizer)
        origin = f"resuming from {checkpoint} at step {state['step']:,}{config.goal}"
        # The weights may fit all the same: of a modern model, the longest phase decides windows and rotary positions.
        changes = _differences(to_mapping(BertConfig.from_directory(checkpoint)), to_mapping(model.config))
        if group.is_main and (text := "; ".join(changes)):
            logger.warning("the model computes otherwise than so far: %s", text)
    if lacks_pairs:  # a head that was trained before would no longer fit its encoder: it counts as untrained
        model.cls.seq_relationship.bias.data.zero_()

    # Should the files differ between machines, those of rank 0 count. Of a sharded model they count already.
    if data_parallel != "fsdp":
        group.broadcast(parameter.data for parameter in model.parameters())
    return model, optimizer, state, origin


def _initial_model(config: PretrainingConfig, tokenizer: Tokenizer) -> tuple[BertForPreTraining, str]:
    """Return a new model with random weights, or the initial model, and where its weights come from."""
    if not config.initial_model:
        longest = max(phase.max_seq_length for phase in config.phases)
        model_config = config.model.resolve(vocab_size=tokenizer.vocab_size, max_length=longest)
        if model_config.vocab_size < tokenizer.vocab_size:
            raise ConfigurationError(
                f"model.overrides.vocab_size: found {model_config.vocab_size}, but the data's vocabulary has "
                f"{tokenizer.vocab_size} tokens"
            )
        origin = f"starting a {config.model.name} model from random weights (seed {config.seed})"
        model = new_model(BertForPreTraining, model_config, seed=config.seed)
        model.predictions.num_tokens = tokenizer.vocab_size
        return model, origin

    # An initial model must have the data's vocabulary, and the size of the preset if one is named.
    directory = Path(config.initial_model)
    check_vocabularies("initial_model", str(directory), Tokenizer.from_directory(directory), "the data", tokenizer)
    overrides = {key: value for key, value in config.model.overrides.items() if key != "vocab_size"}
    stored = BertConfig.from_directory(directory, **overrides)
    if stored.architecture != config.model.architecture:
        raise ConfigurationError(
            f"model.architecture: found {config.model.architecture!r}, but {directory} has the architecture "
            f"{stored.architecture!r}; set model.preset to {INITIAL_SIZE!r}"
        )
    if config.model.preset != INITIAL_SIZE:
        expected = config.model.resolve(vocab_size=stored.vocab_size)
        for key in ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"):
            if getattr(expected, key) != getattr(stored, key):
                raise ConfigurationError(
                    f"model: {key} is {getattr(expected, key)} by the preset {config.model.preset!r}, but "
                    f"{getattr(stored, key)} in {directory}; set model.preset to {INITIAL_SIZE!r}"
                )
    model, report = load_model(BertForPreTraining, directory, config=stored, seed=config.seed, log=False)
    state = "its own" if config.initial_optimizer == "restored" else "fresh"
    return model, f"continuing from {config.initial_model} with {state} optimizer state: {report}"
