"""Hand-made data for every kind of task, and a one-layer model that learns them in a second."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_model.finetuning.config import FinetuningConfig
from bert_model.finetuning.finetune import FinetuningResult, finetune
from bert_model.finetuning.worker_pool import WorkerPool
from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.initialization import new_model
from bert_model.model.weights import save_model
from bert_pipeline.configuration import from_mapping
from bert_pipeline.tasks.catalogue import get_task
from bert_pipeline.tasks.example import Answer, ChoiceExample, SpanExample, TaggedExample, TextExample
from bert_pipeline.tasks.task import TaskData
from bert_pipeline.vocabulary.tokenizer import Tokenizer

GOOD = ("fine", "lovely", "great", "sweet")
BAD = ("awful", "dull", "bleak", "sour")
NOUNS = ("film", "story", "song", "meal")
NAMES = ("anna", "boris", "clara", "david")
PLACES = ("rome", "oslo", "lima", "cairo")
WORDS = (
    *GOOD,
    *BAD,
    *NOUNS,
    *NAMES,
    *PLACES,
    *["the", "a", "was", "lives", "in", "where", "does", "live", "who", "and", "?", "."],
)
TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, "##s", "##ly")

QUICK: dict[str, Any] = {
    "max_seq_length": 48,
    "doc_stride": 16,
    "learning_rates": [2e-3],
    "batch_sizes": [8],
    "epochs": [6.0],
    "seeds": [1],
    "lstm_hidden_size": 16,
    "lstm_learning_rates": [1e-2],
    "threads": 1,
}


def tokenizer() -> Tokenizer:
    return Tokenizer.from_tokens(TOKENS, True)


def make_model(directory: Path, shape_class: type[BertConfig] = BertConfig, **overrides: Any) -> Path:
    """Write an untrained one-layer model with its vocabulary."""
    shape = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    shape |= {"max_position_embeddings": 64, "initializer_range": 0.1, "vocab_size": len(TOKENS), **overrides}
    config = shape_class.from_preset("tiny", **shape)
    directory.mkdir(parents=True)
    save_model(new_model(BertForPreTraining, config, seed=0), directory, tokenizer())
    return directory


def configuration(**overrides: Any) -> FinetuningConfig:
    return from_mapping(FinetuningConfig, {**QUICK, **overrides})


def _text(name: str, index: int) -> TextExample:
    task = get_task(name)
    good = index % 2 == 0
    adjective = (GOOD if good else BAD)[index // 2 % 4]
    text = f"the {NOUNS[index // 3 % 4]} was {adjective} ."
    label: Any = task.labels[index % len(task.labels)] if task.labels else 5.0 * good
    if len(task.labels) == 3:
        text = f"the {NOUNS[index // 3 % 4]} was {(GOOD[index % 4], BAD[index % 4], NAMES[index % 4])[index % 3]} ."
    return TextExample(str(index), text, f"a {NOUNS[index // 5 % 4]} ." if task.pair else None, label)


def _span(index: int, has_impossible: bool) -> SpanExample:
    name, other = NAMES[index % 4], NAMES[(index + 1) % 4]
    place = PLACES[index // 2 % 4]
    context = f"{other.title()} was in {PLACES[(index // 2 + 1) % 4].title()}. {name.title()} lives in {place.title()}."
    if has_impossible and index % 3 == 0:
        return SpanExample(str(index), "t", context, "where was the film ?", (), True)
    answer = Answer(place.title(), context.rindex(place.title()))
    return SpanExample(str(index), "t", context, f"where does {name} live ?", (answer,))


def _choice(index: int) -> ChoiceExample:
    endings = [f"the {noun} was {BAD[index % 4]} ." for noun in NOUNS]
    endings[index % 4] = f"the {NOUNS[index % 4]} was {GOOD[index // 4 % 4]} ."
    return ChoiceExample(str(index), f"{NAMES[index % 4]} lives .", tuple(endings), index % 4)


def _tagged(index: int) -> TaggedExample:
    words = (NAMES[index % 4].title(), "lives", "in", PLACES[index // 2 % 4].title(), ".")
    return TaggedExample(str(index), index // 3, words, ("B-PER", "O", "O", "B-LOC", "O"))


def example(name: str, index: int) -> Any:
    task = get_task(name)
    if task.kind == "span":
        return _span(index, task.has_impossible)
    if task.kind == "choice":
        return _choice(index)
    return _tagged(index) if task.kind == "tagging" else _text(name, index)


def task_data(name: str, *, num_train: int = 48, num_dev: int = 24) -> TaskData:
    task = get_task(name)
    dev = {split: [example(name, 100 + index) for index in range(num_dev)] for split in task.dev_files}
    train = [example(name, index) for index in range(num_train)]
    return TaskData(task=task, train=train, dev=dev, sha256={"made-by-hand": "0" * 64})


def squad_file(examples: Sequence[SpanExample], *, has_impossible: bool = False) -> str:
    """Return the text of a file of SQuAD 1.1, or of 2.0, with a paragraph for each question."""
    paragraphs = []
    for e in examples:
        answers = [{"text": answer.text, "answer_start": answer.start} for answer in e.answers]
        question = {"id": f"q{e.example_id}", "question": e.question, "answers": answers}
        if has_impossible:
            question["is_impossible"] = e.is_impossible
        paragraphs.append({"context": e.context, "qas": [question]})
    version = "v2.0" if has_impossible else "1.1"
    return json.dumps({"version": version, "data": [{"title": "t", "paragraphs": paragraphs}]})


def tune(data: TaskData | str, model: Path, output: Path, replace: bool = False, **settings: Any) -> FinetuningResult:
    """Fine-tune in this process, with the quick settings and these, on the data or on those of the task."""
    data = task_data(data) if isinstance(data, str) else data
    pool = WorkerPool(num_workers=0)
    return finetune(data, model, output, configuration(**settings), pool=pool, experiment="", replace=replace)
