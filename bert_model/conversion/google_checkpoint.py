"""google's TensorFlow checkpoints (google-research/bert) as Hugging Face directories.

TensorFlow reads the checkpoint; no other module imports it.
"""

import os
import re
from pathlib import Path

import torch
from torch import Tensor

from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.weights import LoadReport, fill_model, name_weights, write_weights
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.manifest import foreign_input, publishing
from bert_pipeline.vocabulary.files import VOCABULARY_NAME, read_vocabulary
from bert_pipeline.vocabulary.tokenizer import Tokenizer

KIND = "converted_model"
GOOGLE_CONFIG_NAME = "bert_config.json"
CHECKPOINT_NAME = "bert_model.ckpt"

_LOWER_CASING = ("uncased", "multilingual", "chinese")
"""Parts of the names of google's lower-casing models, multilingual_L-12_H-768_A-12 among them."""

_TRAINING_STATE = re.compile(r"(^|/)(adam_[mv]|global_step)$")
"""Variables of google's optimizer."""

# google's last parts of a name -> Hugging Face's. A dense layer's kernel is the transpose of a weight; the
# `output_weights` of the next-sentence head are not.
_RENAMED = (
    (r"_embeddings$", r"_embeddings/weight"),
    (r"/layer_(\d+)/", r"/layer/\1/"),
    (r"/(kernel|gamma|output_weights)$", "/weight"),
    (r"/(beta|output_bias)$", "/bias"),
)


def convert_checkpoint(checkpoint: Path, output: Path, *, cased: bool | None = None) -> LoadReport:
    """Write a checkpoint of google's BERT as a Hugging Face directory, and return what was found in it.

    `checkpoint` is the prefix of its files, such as uncased_L-12_H-768_A-12/bert_model.ckpt, or their directory, which
    also contains bert_config.json and vocab.txt. `cased` is read from the directory's name if it is None. Encoder,
    pooler and both heads of pre-training are converted, and the optimizer's variables are left out. InputError for any
    other or missing variable, by name; UsageError without TensorFlow, or if neither name nor `cased` tells the case.
    """
    name = re.sub(r"\.(index|meta|data-\d+-of-\d+)$", "", checkpoint.name)  # one of its files names it as well
    prefix = checkpoint / CHECKPOINT_NAME if checkpoint.is_dir() else checkpoint.with_name(name)
    if not prefix.with_name(f"{prefix.name}.index").is_file():
        raise InputError(f"{prefix}.index: does not exist; give the prefix of a checkpoint, such as {CHECKPOINT_NAME}")
    directory = prefix.parent
    config = BertConfig.from_file(directory / GOOGLE_CONFIG_NAME)
    tokens = read_vocabulary(directory / VOCABULARY_NAME)
    do_lower_case = not (_cased(directory) if cased is None else cased)
    tokenizer = Tokenizer.from_tokens(tokens, do_lower_case, str(directory / VOCABULARY_NAME))
    if tokenizer.vocab_size != config.vocab_size:
        raise InputError(
            f"{directory / VOCABULARY_NAME}: {tokenizer.vocab_size} tokens, but {GOOGLE_CONFIG_NAME} has vocab_size "
            f"{config.vocab_size}; give the vocabulary of this checkpoint"
        )

    # The checkpoint is checked against the model before anything is written.
    weights = name_weights(_read_variables(prefix), str(prefix))
    _, report = fill_model(BertForPreTraining, config, weights)  # raises for every misfit
    # Inputs are named by their suffixes: "index", "data-00000-of-00001".
    files = [directory / f"{prefix.name}.index", *sorted(directory.glob(f"{prefix.name}.data-*"))]
    inputs = {path.suffix[1:]: foreign_input(path) for path in files}
    with publishing(output, kind=KIND, configuration={"do_lower_case": do_lower_case}, inputs=inputs) as draft:
        write_weights(weights.tensors, config, weights.architecture, draft.path)
        tokenizer.save(draft.path, model_max_length=config.max_position_embeddings)
        draft.counts |= {"parameters": sum(tensor.numel() for tensor in weights.tensors.values())}
    return report


def _cased(directory: Path) -> bool:
    name = directory.resolve().name.lower()
    if any(part in name for part in _LOWER_CASING):
        return False
    if "cased" in name:
        return True
    raise UsageError(f"{directory}: its name tells neither cased nor uncased; add --cased or --no-cased")


def _read_variables(prefix: Path) -> dict[str, Tensor]:
    """Read a checkpoint's variables under Hugging Face's names, without those of the optimizer."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # warnings and errors only; must be set before the import
    try:
        import tensorflow
    except ImportError as error:
        raise UsageError(
            "google's checkpoints are read by TensorFlow, which is not installed; install it with "
            ".venv/bin/pip install -e '.[tensorflow]'"
        ) from error
    try:
        reader = tensorflow.train.load_checkpoint(str(prefix))
        names = [name for name in reader.get_variable_to_shape_map() if not _TRAINING_STATE.search(name)]
        tensors = {name: torch.as_tensor(reader.get_tensor(name)) for name in sorted(names)}
    except Exception as error:  # TensorFlow raises its error codes as exceptions of many types
        raise InputError(f"{prefix}: TensorFlow cannot read this checkpoint ({error})") from error
    return {_torch_name(name): tensor.t() if name.endswith("/kernel") else tensor for name, tensor in tensors.items()}


def _torch_name(name: str) -> str:
    for pattern, replacement in _RENAMED:
        name = re.sub(pattern, replacement, name)
    return name.replace("/", ".")
