"""Weights: Hugging Face directories, read strictly and written so that AutoModel opens them."""

import errno
import functools
import json
import logging
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from bert_model.model.bert import BertForPreTraining, BertModel
from bert_model.model.config import BILSTM_PREFIX, CONFIG_NAME, MODERN_PREFIX, BertConfig, ModernConfig, read_document
from bert_model.model.initialization import empty_model, in_shape, initialize_weights
from bert_pipeline.atomic import atomic_write
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.vocabulary.files import read_stated
from bert_pipeline.vocabulary.tokenizer import Tokenizer

Model = TypeVar("Model", bound=nn.Module)

logger = logging.getLogger(__name__)

WEIGHTS_NAME = "model.safetensors"
PICKLED_NAME = "pytorch_model.bin"

# The parameters of each architecture beyond embeddings and encoder. Pooler, MLM and NSP heads mean the same in every
# architecture and are loaded wherever both have them; a task's head is loaded into the same architecture only.
POOLER = "bert.pooler."
MASKED_LM = "cls.predictions."
NEXT_SENTENCE = "cls.seq_relationship."
CLASSIFIER = "classifier."
QA_OUTPUTS = "qa_outputs."
BILSTM = "bilstm."
HEADS: dict[str, tuple[str, ...]] = {
    "BertModel": (POOLER,),
    "BertForPreTraining": (POOLER, MASKED_LM, NEXT_SENTENCE),
    "BertForMaskedLM": (MASKED_LM,),
    "BertLMHeadModel": (MASKED_LM,),
    "BertForNextSentencePrediction": (POOLER, NEXT_SENTENCE),
    "BertForSequenceClassification": (POOLER, CLASSIFIER),
    "BertForMultipleChoice": (POOLER, CLASSIFIER),
    "BertForQuestionAnswering": (QA_OUTPUTS,),
    "BertForTokenClassification": (CLASSIFIER,),
}
# A modern encoder's parameters begin with `model.`. The dense layer of its masked-LM head is loaded into each
# architecture.
MODERN_HEAD = "head."
DECODER = "decoder."
MODERN_TASKS = ("SequenceClassification", "MultipleChoice", "QuestionAnswering", "TokenClassification")
MODERN_HEADS: dict[str, tuple[str, ...]] = {
    "BertModel": (),
    "BertForMaskedLM": (MODERN_HEAD, DECODER),
    **{f"BertFor{task}": (MODERN_HEAD, CLASSIFIER) for task in MODERN_TASKS},
}
WORD_HEADS = (MASKED_LM, DECODER)
"""The masked-LM head in either architecture."""
SHARED_HEADS = {POOLER, MASKED_LM, NEXT_SENTENCE, MODERN_HEAD, DECODER}
TASK_HEADS = {CLASSIFIER, QA_OUTPUTS}
ALL_HEADS = SHARED_HEADS | TASK_HEADS | {BILSTM}

FLOATING_POINT = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
ENCODER_PREFIXES = {False: "bert.", True: "model."}
"""What the names of an encoder's parameters begin with in a file, by whether it is modern."""
POSITION_IDS = "bert.embeddings.position_ids"
"""A buffer of older releases of transformers, which counts from 0."""
TIED = {
    "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
    "decoder.weight": "model.embeddings.tok_embeddings.weight",
}
"""Copies that some files store, and the parameters that they are tied to."""
MAX_NAMES = 8
"""Limit on the tensors that an error names."""


@dataclass(frozen=True, kw_only=True)
class Weights:
    """Named tensors and what they are the weights of."""

    where: str
    """The directory or file that they come from, for messages."""
    tensors: Mapping[str, Tensor]
    """Finite tensors under the names of transformers' BertForPreTraining and task models."""
    architecture: str
    """The key of `HEADS` that their heads fit best."""


@dataclass(frozen=True, kw_only=True)
class LoadReport:
    """What `load_model` did with every tensor."""

    source_architecture: str
    """The architecture whose heads the directory holds."""
    loaded: tuple[str, ...]
    """Parameters read from the directory."""
    created: tuple[str, ...]
    """Parameters of heads that the directory lacks: randomly initialized."""
    dropped: tuple[str, ...]
    """Tensors of heads that the model lacks."""

    def __str__(self) -> str:
        return (
            f"{len(self.loaded)} tensors used, {_summary(self.dropped)} ignored, "
            f"{_summary(self.created)} newly initialized"
        )


def _summary(names: Sequence[str]) -> str:
    """Count tensors and name their heads: "4 (cls.predictions, classifier)"."""
    heads = {next((head.rstrip(".") for head in ALL_HEADS if name.startswith(head)), name) for name in names}
    return f"{len(names)} ({', '.join(sorted(heads))})" if names else "0"


def load_model(
    model_class: type[Model],
    directory: Path | str,
    *,
    config: BertConfig | None = None,
    seed: int = 0,
    log: bool = True,
) -> tuple[Model, LoadReport]:
    """Load a Hugging Face directory into one of the model classes here, in float32 on the CPU.

    The tensors decide what is loaded, as in `fill_model`; the report is a line of the log unless `log` is false. The
    configuration is the directory's, or `config` if the caller has read it already.
    The embeddings are compared with the directory's vocabulary: UsageError if it has more tokens, a warning if it has
    fewer, whose other rows are not predicted.
    """
    directory = Path(directory)
    config = config or BertConfig.from_directory(directory)
    tokens = read_stated(directory).tokens
    _compare_rows(directory, config, len(tokens) or config.vocab_size)
    model, report = fill_model(model_class, config, read_weights(directory), seed=seed)
    if tokens and isinstance(model, BertForPreTraining):
        model.predictions.num_tokens = len(tokens)
    if log:
        logger.info("%s: %s", directory, report)
    return model, report


def fill_model(
    model_class: type[Model], config: BertConfig, weights: Weights, *, seed: int = 0, new_task_head: bool = False
) -> tuple[Model, LoadReport]:
    """Build a model from named tensors, in float32 on the CPU.

    Heads that only one side has are created (from `seed`) or dropped, and so is a task's head with `new_task_head`.
    Any other missing or unexpected tensor, or a wrong shape, raises InputError with the tensor's name.
    """
    # Names in the files begin with `bert.`, which a bare BertModel's parameters lack.
    model_class = in_shape(model_class, config)
    tensors, source, target = weights.tensors, weights.architecture, architecture_of(model_class)
    model = empty_model(model_class, config)
    prefix = ENCODER_PREFIXES[isinstance(config, ModernConfig)] if issubclass(model_class, BertModel) else ""
    parameters = {prefix + name: parameter for name, parameter in model.named_parameters()}

    # Which heads are kept, created and dropped; everything else must match exactly.
    target_heads, source_heads = _heads_of(parameters), _heads_of(tensors)
    loadable = SHARED_HEADS if source != target or new_task_head else ALL_HEADS
    kept = target_heads & source_heads & loadable
    created = {name for name in parameters if name.startswith(tuple(target_heads - kept))}
    dropped = {name for name in tensors if name.startswith(tuple(source_heads - kept)) or name == POSITION_IDS}
    expected, stored = set(parameters) - created, set(tensors) - dropped

    # All problems in one error: one at a time would take as many runs.
    problems = [f"missing {name}" for name in sorted(expected - stored)]
    problems += [
        f"{name} differs from {TIED[name]}, to which this model ties it" if name in TIED else f"unexpected {name}"
        for name in sorted(stored - expected)
    ]
    problems += [
        f"{name} has shape {tuple(tensors[name].shape)}, expected {tuple(parameters[name].shape)}"
        for name in sorted(expected & stored)
        if tensors[name].shape != parameters[name].shape
    ]
    if problems:
        found_in = f"{weights.where}: its tensors do not fit a {target} (from a {source})"
        raise InputError(f"{found_in}: {_first(problems, '; ')}")

    with torch.no_grad():
        for name in expected:
            parameters[name].copy_(tensors[name])

    # In sorted order, so that the new heads are a function of the seed.
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


def architecture_of(model_class: type[nn.Module]) -> str:
    """Return the role of a model class: its name in transformers without the prefix of its shape, or `published_as`."""
    name: str = getattr(model_class, "published_as", model_class.__name__.removeprefix("FSDP"))  # of sharded models
    return name.removeprefix(MODERN_PREFIX)


def divided(tensors: Mapping[str, Tensor], divisor: float) -> dict[str, Tensor]:
    """Return the tensors of a model whose outputs are divided by a number, if its last layer is a classifier."""
    return {name: t / divisor if name.startswith(CLASSIFIER) else t for name, t in tensors.items()}


def check_embeddings(directory: Path, config: BertConfig, tokenizer: Tokenizer, *, pair_task: str = "") -> None:
    """Raise UsageError if the embeddings are too small for the vocabulary, or for the two texts of `pair_task`."""
    _compare_rows(directory, config, tokenizer.vocab_size)
    if pair_task and config.type_vocab_size < 2:
        raise UsageError(
            f"{directory}: its embeddings have type_vocab_size={config.type_vocab_size}, but {pair_task} reads two "
            "texts, which need two segments; give a model with two"
        )


def _compare_rows(directory: Path, config: BertConfig, num_tokens: int) -> None:
    """Raise UsageError if a vocabulary has more tokens than the embeddings have rows; warn if it has fewer."""
    if num_tokens > config.vocab_size:
        raise UsageError(
            f"{directory}: its vocabulary has {num_tokens} tokens, its embeddings only {config.vocab_size} rows; the "
            "vocabulary is not this model's"
        )
    if num_tokens < config.vocab_size:
        _warn_of_padding(str(directory), config.vocab_size, num_tokens)


@functools.cache  # once in a process
def _warn_of_padding(directory: str, num_rows: int, num_tokens: int) -> None:
    # Rows are padded for speed. A vocabulary that lost a line looks alike, but its ids are shifted.
    doubt = "" if num_rows % 8 == 0 else ", which is no multiple of 8 as padded ones are: is a line of it missing?"
    logger.warning(
        f"{directory}: its embeddings have {num_rows} rows for the {num_tokens} tokens of its vocabulary{doubt}; rows "
        "without a token are not predicted"
    )


def read_weights(directory: Path) -> Weights:
    """Read the weights of a directory; InputError for values that are not finite and for an unknown mix of heads."""
    names = read_document(directory / CONFIG_NAME).get("architectures") or []
    # By their roles: without the prefixes of shape and BiLSTM.
    roles = [name.removeprefix(MODERN_PREFIX).replace(BILSTM_PREFIX, "Bert", 1) for name in names]
    return name_weights(read_tensors(directory), str(directory), roles)


def name_weights(tensors: Mapping[str, Tensor], where: str, architectures: Sequence[str] = ()) -> Weights:
    """Bring tensors of any known layout to the current names, and choose their architecture by the heads among them.

    `architectures` of config.json only tells apart those with the same kind of head: the classifiers of sequences,
    tokens and choices have the same names. InputError for a name that occurs twice, for values that are no tensors or
    not finite, and for an unknown mix of heads; `where` begins its text.
    """
    tensors = _canonical(tensors, where)
    # Only heads of tasks must be known in this combination; shared heads may be there or not.
    present = _heads_of(tensors) - {BILSTM}
    known = MODERN_HEADS if any(name.startswith(ENCODER_PREFIXES[True]) for name in tensors) else HEADS
    fitting = [name for name, heads in known.items() if present & TASK_HEADS == set(heads) & TASK_HEADS]
    if not fitting:
        raise InputError(f"{where}: holds the heads {', '.join(sorted(present))}, which no known architecture has")
    named = [name for name in architectures if name in fitting]
    nearest = sorted(fitting, key=lambda name: (not present <= set(known[name]), len(present ^ set(known[name]))))
    return Weights(where=where, tensors=tensors, architecture=(named or nearest)[0])


def _heads_of(names: Iterable[str]) -> set[str]:
    """Return the prefixes of the heads that some of the tensors belong to."""
    return {head for name in names for head in ALL_HEADS if name.startswith(head)}


def save_model(
    model: nn.Module,
    directory: Path,
    tokenizer: Tokenizer,
    *,
    max_seq_length: int | None = None,
    problem_type: str = "",
) -> None:
    """Write config.json, model.safetensors and the tokenizer's files into an existing directory.

    In transformers the tokenizer truncates to `max_seq_length`, by default to the number of positions, and
    `problem_type` says what the outputs mean (`BertConfig.to_json`).
    """
    config: BertConfig = model.config  # type: ignore[assignment]
    if tokenizer.vocab_size > config.vocab_size:
        raise UsageError(f"the vocabulary has {tokenizer.vocab_size} tokens, the model only {config.vocab_size}")
    architecture = architecture_of(type(model))
    if getattr(model, "bilstm", None) is not None:
        architecture = architecture.replace("Bert", BILSTM_PREFIX, 1)
    write_weights(dict(model.named_parameters()), config, architecture, directory, problem_type=problem_type)
    tokenizer.save(directory, model_max_length=max_seq_length or config.max_position_embeddings)


def write_weights(
    tensors: Mapping[str, Tensor], config: BertConfig, architecture: str, directory: Path, *, problem_type: str = ""
) -> None:
    """Write config.json and model.safetensors from named tensors on any device."""
    held = {name: tensor.detach().to("cpu", torch.float32).contiguous() for name, tensor in tensors.items()}
    save_tensors(held, directory / WEIGHTS_NAME)
    (directory / CONFIG_NAME).write_text(config.to_json(architecture, problem_type=problem_type), encoding="utf-8")


def save_tensors(tensors: dict[str, Tensor], path: Path) -> None:
    """Write tensors on the CPU to a safetensors file, whole or not at all; OSError if there is no room for it."""
    try:
        with atomic_write(path) as temporary:
            save_file(tensors, temporary, metadata={"format": "pt"})
    except SafetensorError as error:  # safetensors' own error, which keeps only the text of the system's
        needed = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        free = shutil.disk_usage(path.parent).free
        message = f"cannot be written ({error}); it needs about {needed:,} bytes, {free:,} are free"
        raise OSError(errno.EIO, message, str(path)) from error


def weight_files(directory: Path) -> list[Path]:
    """Return the weight files of a directory: safetensors, else `.bin`, each a single file or in shards."""
    # Safetensors first: they cannot carry code, and load faster.
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
        try:
            if path.suffix == ".safetensors":
                tensors |= load_file(path)
            else:
                tensors |= torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path}: not a readable {path.suffix[1:]} file ({error})") from error
        except Exception as error:  # torch raises whatever the unpickler raises
            raise InputError(f"{path}: not a file of tensors only ({type(error).__name__}: {error})") from error
    return tensors


def _canonical(tensors: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """Return the tensors under the current names, without copies that equal what they are tied to."""
    renamed: dict[str, Tensor] = {}
    broken = []

    # Old and new names may meet: two tensors of one name would leave it to chance which is used.
    for stored_name, tensor in tensors.items():
        name = _current_name(stored_name)
        if name in renamed or not isinstance(tensor, Tensor):
            kind = f"a {type(tensor).__name__}" if name not in renamed else "stored twice"
            raise InputError(f"{where}: {stored_name} is {kind}, expected one tensor of each name")
        if tensor.dtype not in FLOATING_POINT and name != POSITION_IDS:  # quantized: numbers without their scales
            raise InputError(f"{where}: {stored_name} is of type {tensor.dtype}, expected 16-bit floats or wider")
        renamed[name] = tensor
        if not bool(torch.isfinite(tensor).all()):
            broken.append(stored_name)
    if broken:
        raise InputError(f"{where}: weights that are not finite: {_first(broken, ', ')}; the model is damaged")

    # Equal copies are dropped. A file may hold only the copy: `setdefault` then makes it the original.
    for copy, original in TIED.items():
        if copy in renamed and torch.equal(renamed[copy], renamed.setdefault(original, renamed[copy])):
            del renamed[copy]
    return renamed


def _current_name(name: str) -> str:
    """Undo the names of data-parallel training, of files without `bert.` and of google's layer normalization."""
    name = name.removeprefix("module.")
    if name.startswith(("embeddings.tok_", "embeddings.norm.", "layers.", "final_norm.")):
        return ENCODER_PREFIXES[True] + name
    if name.startswith(("embeddings.", "encoder.", "pooler.")):
        name = ENCODER_PREFIXES[False] + name
    name = re.sub(r"LayerNorm\.gamma$", "LayerNorm.weight", name)
    return re.sub(r"LayerNorm\.beta$", "LayerNorm.bias", name)


def _first(texts: Sequence[str], separator: str) -> str:
    more = [f"and {len(texts) - MAX_NAMES} more"] if len(texts) > MAX_NAMES else []
    return separator.join([*texts[:MAX_NAMES], *more])
