"""Weights: Hugging Face directories, read strictly and written so that AutoModel opens them."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from bert_model.model.bert import empty_model, initialize_weights
from bert_model.model.config import BILSTM_PREFIX, CONFIG_NAME, BertConfig, stored_architectures
from bert_pipeline.errors import InputError, UsageError

if TYPE_CHECKING:
    from bert_pipeline.vocabulary.tokenizer import Tokenizer

Model = TypeVar("Model", bound=nn.Module)

WEIGHTS_NAME = "model.safetensors"
PICKLED_NAME = "pytorch_model.bin"

# The parameters of each architecture beyond embeddings and encoder. Pooler, MLM and NSP heads mean the same in every
# architecture and are loaded wherever both have them; a classifier is loaded into the same architecture only.
POOLER = "bert.pooler."
MASKED_LM = "cls.predictions."
NEXT_SENTENCE = "cls.seq_relationship."
BILSTM = "bilstm."
HEADS: dict[str, tuple[str, ...]] = {
    "BertModel": (POOLER,),
    "BertForPreTraining": (POOLER, MASKED_LM, NEXT_SENTENCE),
    "BertForMaskedLM": (MASKED_LM,),
    "BertLMHeadModel": (MASKED_LM,),
    "BertForNextSentencePrediction": (POOLER, NEXT_SENTENCE),
    "BertForSequenceClassification": (POOLER, "classifier."),
    "BertForMultipleChoice": (POOLER, "classifier."),
    "BertForQuestionAnswering": ("qa_outputs.",),
    "BertForTokenClassification": ("classifier.",),
}
SHARED_HEADS = (POOLER, MASKED_LM, NEXT_SENTENCE)


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """What `load_model` did with every tensor."""

    source_architecture: str
    """The architecture of the directory."""
    loaded: tuple[str, ...]
    """Parameters read from the directory."""
    created: tuple[str, ...]
    """Parameters of heads that the directory's architecture lacks: randomly initialized."""
    dropped: tuple[str, ...]
    """Tensors of heads that the model lacks."""

    def __str__(self) -> str:
        text = f"{len(self.loaded)} tensors loaded from a {self.source_architecture}"
        for verb, names in (("created", self.created), ("dropped", self.dropped)):
            if names:
                text += f"; {verb}: {', '.join(names)}"
        return text


def load_model(
    model_class: type[Model],
    directory: Path | str,
    *,
    config: BertConfig | None = None,
    num_labels: int | None = None,
    seed: int = 0,
    **config_overrides: Any,
) -> tuple[Model, LoadReport]:
    """Load a Hugging Face directory into one of the model classes here, in float32 on the CPU.

    Heads that only one of the two architectures has are created (from `seed`) or dropped, and reported. Any other
    missing or unexpected tensor, or wrong shape, raises InputError with its name. The configuration is the directory's
    with `num_labels` and overrides, or `config` if the caller has read it already.
    """
    directory = Path(directory)
    if num_labels is not None:
        config_overrides.setdefault("labels", tuple(f"LABEL_{index}" for index in range(num_labels)))
    assert config is None or not config_overrides, "overrides are in `config` already"
    config = config or BertConfig.from_directory(directory, **config_overrides)
    stored = json.loads((directory / CONFIG_NAME).read_text(encoding="utf-8"))
    tensors = _canonical(read_tensors(directory), directory)
    source, target = _architecture(directory, stored, tensors), model_class.__name__
    if target not in HEADS:
        raise UsageError(f"{target}: not a model class that weights are loaded into (known: {', '.join(HEADS)})")
    model = empty_model(model_class, config)
    prefix = "bert." if model_class.__name__ == "BertModel" else ""
    parameters = {prefix + name: parameter for name, parameter in model.named_parameters()}

    # Which heads are kept, created and dropped; everything else must match exactly.
    target_heads, source_heads = _heads(target, config.head), _heads(source, stored.get("head", "linear"))
    kept = {head for head in source_heads & target_heads if head in SHARED_HEADS or source == target}
    created = {name for name in parameters if _starts(name, target_heads - kept)}
    dropped = {name for name in tensors if _starts(name, source_heads - kept)}
    expected, found = set(parameters) - created, set(tensors) - dropped
    problems = [f"missing {name}" for name in sorted(expected - found)]
    problems += [f"unexpected {name}" for name in sorted(found - expected)]
    problems += [
        f"{name} has shape {tuple(tensors[name].shape)}, expected {tuple(parameters[name].shape)}"
        for name in sorted(expected & found)
        if tensors[name].shape != parameters[name].shape
    ]
    if problems:
        shown = "; ".join(problems[:8]) + (f"; and {len(problems) - 8} more" if len(problems) > 8 else "")
        raise InputError(f"{directory}: its tensors do not fit a {target} (from a {source}): {shown}")

    # In sorted order, so that the new heads are a function of the seed.
    with torch.no_grad():
        for name in expected:
            parameters[name].copy_(tensors[name])
    generator = torch.Generator().manual_seed(seed)
    for head in sorted(target_heads - kept):
        name = head.rstrip(".").removeprefix(prefix)
        initialize_weights(model.get_submodule(name), generator, config.initializer_range)
    report = LoadReport(
        source_architecture=source,
        loaded=tuple(sorted(expected)),
        created=tuple(sorted(created)),
        dropped=tuple(sorted(dropped)),
    )
    return model, report


def _heads(architecture: str, head: str) -> set[str]:
    """Return the parameter prefixes of an architecture's heads; a task model may have a BiLSTM as well."""
    has_bilstm = head == "bilstm" and not set(HEADS[architecture]) <= set(SHARED_HEADS)
    return {*HEADS[architecture], *((BILSTM,) if has_bilstm else ())}


def save_model(
    model: nn.Module,
    directory: Path,
    tokenizer: "Tokenizer",
    *,
    max_seq_length: int | None = None,
    problem_type: str = "",
) -> None:
    """Write config.json, model.safetensors, vocab.txt and tokenizer_config.json into an existing directory.

    In transformers the tokenizer truncates to `max_seq_length`, by default to the number of positions, and
    `problem_type` says what the outputs mean (`BertConfig.to_json`).
    """
    config: BertConfig = model.config  # type: ignore[assignment]
    if tokenizer.vocab_size > config.vocab_size:
        raise UsageError(f"the vocabulary has {tokenizer.vocab_size} tokens, the model only {config.vocab_size}")
    architecture = type(model).__name__
    if getattr(model, "bilstm", None) is not None:
        architecture = architecture.replace("Bert", BILSTM_PREFIX, 1)
    write_weights(dict(model.named_parameters()), config, architecture, directory, problem_type=problem_type)
    tokenizer.save(directory, model_max_length=max_seq_length or config.max_position_embeddings)


def write_weights(
    tensors: Mapping[str, Tensor], config: BertConfig, architecture: str, directory: Path, *, problem_type: str = ""
) -> None:
    """Write config.json and model.safetensors from named tensors on any device."""
    held = {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in tensors.items()}
    save_file(held, directory / WEIGHTS_NAME, metadata={"format": "pt"})
    (directory / CONFIG_NAME).write_text(config.to_json(architecture, problem_type=problem_type), encoding="utf-8")


def weight_files(directory: Path) -> list[Path]:
    """Return the weight files of a directory: safetensors, else `.bin`, each a single file or in shards."""
    for name in (WEIGHTS_NAME, PICKLED_NAME):
        if (directory / name).is_file():
            return [directory / name]
        if (index := directory / f"{name}.index.json").is_file():
            return _shards(index, Path(name).suffix)
    raise InputError(f"{directory}: contains neither {WEIGHTS_NAME} nor {PICKLED_NAME}; give a model directory")


def _shards(index: Path, suffix: str) -> list[Path]:
    """Return the shards that an index file lists, which must be in the same directory."""
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{index}: not an index of weights ({type(error).__name__}: {error})") from error
    for name in names:
        if Path(name).name != name:
            raise InputError(f"{index}: names the file {name!r} outside its own directory")
        if Path(name).suffix != suffix or not (index.parent / name).is_file():
            raise InputError(f"{index}: names the file {name!r}, expected a {suffix} file beside it")
    return [index.parent / name for name in names]


def read_tensors(directory: Path) -> dict[str, Tensor]:
    """Read all tensors of a directory; pickled files are read without executing code."""
    tensors: dict[str, Tensor] = {}
    for path in weight_files(directory):
        tensors.update(_read_safetensors(path) if path.suffix == ".safetensors" else _read_pickled(path))
    return tensors


def _read_pickled(path: Path) -> dict[str, Tensor]:
    try:
        return dict(torch.load(path, map_location="cpu", weights_only=True))
    except Exception as error:  # torch raises whatever the unpickler raises
        raise InputError(f"{path}: not a file of tensors only ({type(error).__name__}: {error})") from error


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        with safe_open(path, framework="pt") as stored:
            return {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 (not a mapping)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{path}: not a readable safetensors file ({error})") from error


def _canonical(tensors: Mapping[str, Tensor], directory: Path) -> dict[str, Tensor]:
    """Rename tensors of older and of headless files to the current names, and check that tied tensors are equal."""
    renamed = {}
    for name, tensor in tensors.items():
        if name.endswith("embeddings.position_ids"):  # a buffer that older releases stored
            continue
        if name.startswith(("embeddings.", "encoder.", "pooler.")):
            name = "bert." + name
        name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
        name = re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)
        renamed[name] = tensor
    for copy, original in (
        ("cls.predictions.decoder.weight", "bert.embeddings.word_embeddings.weight"),
        ("cls.predictions.decoder.bias", "cls.predictions.bias"),
    ):
        if copy in renamed:
            tensor = renamed.pop(copy)
            if not torch.equal(tensor, renamed.setdefault(original, tensor)):
                raise InputError(f"{directory}: {copy} differs from {original}; a BERT ties them")
    return renamed


def _architecture(directory: Path, stored: Mapping[str, Any], tensors: Iterable[str]) -> str:
    named = stored_architectures(stored)
    for architecture in named:
        if architecture in HEADS:
            return architecture
    if named:
        raise InputError(
            f"{directory / CONFIG_NAME}: architecture {named[0]!r} is not known (known: {', '.join(HEADS)})"
        )
    # A config.json without the key: infer the architecture from the heads.
    possible = {head for heads in HEADS.values() for head in heads}
    found = {head for head in possible if any(_starts(name, {head}) for name in tensors)}
    for architecture, heads in HEADS.items():
        if found == set(heads):
            return architecture
    raise InputError(f"{directory / CONFIG_NAME}: has no architectures, and the tensors fit none of {', '.join(HEADS)}")


def _starts(name: str, prefixes: Iterable[str]) -> bool:
    return name.startswith(tuple(prefixes))
