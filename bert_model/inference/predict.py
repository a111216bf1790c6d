"""Predictors: every task, masked words and next sentences; one model or an ensemble.

Every answer has the `id` of its input and a `prediction`, which `bert score` takes: a label, a number, an answer text,
the index of an ending or a list of tags.
"""

import contextlib
import dataclasses
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch

from bert_model.finetuning.forward_passes import TOKENS_PER_BATCH
from bert_model.finetuning.task_model import TaskModel, load_task_model, prediction_device
from bert_model.inference.inputs import PredictionInput, halved, input_row, read_rows, rejected_path, rejecting, writing
from bert_model.kinds import kind_of
from bert_model.kinds.base import fitted_of, rounded, softmax
from bert_model.kinds.embedding import BLOCK
from bert_model.kinds.encoded import EncodedSet, prediction_batches
from bert_model.kinds.span import NULL_LOGIT_DIFFERENCE
from bert_model.kinds.text import encode_texts
from bert_model.model.bert import BertForPreTraining
from bert_model.model.weights import NEXT_SENTENCE, WORD_HEADS, check_embeddings, load_model
from bert_model.training.distributed import autocast
from bert_model.zero_shot.exam import token_scores
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.records import Record
from bert_pipeline.storage import is_file
from bert_pipeline.tasks.catalogue import Task, get_task
from bert_pipeline.vocabulary.files import MASK
from bert_pipeline.vocabulary.tokenizer import Tokenizer

logger = logging.getLogger(__name__)

PRETRAINING_TASKS = ("mlm", "nsp", "pll")
CHUNK = BLOCK
"""Number of inputs that are read, answered and written together."""
NUM_CANDIDATES = 5

Answer = dict[str, Any] | InputError
"""An answer, or the reason why there is none."""


Predictor: TypeAlias = "TaskPredictor | PretrainingPredictor"
"""Answers inputs of one form, a key of `FIELDS`, and the files of its `data_task`, which masked words lack."""


@dataclasses.dataclass(kw_only=True)
class PredictionCounts:
    """What became of the rows of an input file."""

    answers: int = 0
    blank: int = 0
    """Blank lines, whose answer has a null prediction."""
    truncated: int = 0
    """Answers to texts that were cut to the model's maximum length."""
    rejected: int = 0
    """Rows that could not be read or answered."""

    @property
    def lines(self) -> int:
        """Number of lines of the output."""
        return self.answers + self.blank


def predict(
    task: str,
    directories: Sequence[Path],
    input_path: str = "-",
    output_path: str = "-",
    precision: str | None = None,
    tokens: bool = False,
) -> PredictionCounts:
    """Answer every input of a file or of standard input as JSON lines; see `answer_file`.

    Several models answer as an ensemble, by the mean of their probabilities.
    """
    return answer_file(load_predictor(task, directories, precision, tokens), input_path, output_path)


def load_predictor(
    task: str, directories: Sequence[Path], precision: str | None = None, tokens: bool = False
) -> Predictor:
    """Load the models of one task onto the GPU, or the CPU without one; UsageError if they do not fit together.

    They compute in `precision`, as `autocast` names it; by default in that of their fine-tuning, else in float32. With
    `tokens` answers of pll have each token's part.
    """
    device = prediction_device()
    if tokens and task != "pll":
        raise UsageError(f"--tokens: {task} has no score for each token, only pll has")
    if task in PRETRAINING_TASKS:
        if len(directories) != 1:
            raise UsageError(f"{task}: takes one model, found {len(directories)}")
        return PretrainingPredictor(directories[0], task, device, precision or "float32", tokens)
    predictor = TaskPredictor([load_task_model(directory, task).to(device) for directory in directories], precision)
    if task.endswith((".yaml", ".yml")):  # its files may have changed since the model was trained
        predictor.data_task = get_task(task)
    return predictor


def answer_file(predictor: Predictor, input_path: str, output_path: str) -> PredictionCounts:
    """Answer every input of a file with loaded models; log and return what became of its rows.

    A blank line gets an answer with a null prediction, so that lines of text and answers correspond. A row that cannot
    be read or answered is set aside (`rejecting`) and the others are answered. InputError if that is so for every row
    of the first chunk: then the file is not one of inputs. The output file is written atomically.
    """
    counts = PredictionCounts()
    first_error = ""
    with writing(output_path) as output, rejecting(output_path) as reject:
        chunks = _chunks(read_rows(input_path, predictor.form, predictor.data_task))
        for chunk, encoded in _encoded(predictor, chunks, input_path):
            # One answer for each readable or blank row, in order; the others go to `reject`.
            for row, answer in _answer_rows(predictor, chunk, encoded):
                if isinstance(answer, InputError):
                    first_error = first_error or str(answer)
                    counts.rejected += 1
                    reject(row._replace(error=str(answer)))
                    continue
                counts.blank += row.is_blank
                counts.answers += not row.is_blank
                counts.truncated += answer.get("truncated", False)
                output.write(json.dumps(answer, ensure_ascii=False) + "\n")
            output.flush()
            # Not one answer yet: the input is something else, and the rest would be rejected as well.
            if counts.rejected and not counts.answers:
                more = f" (none of the first {counts.rejected} rows can be answered)" if counts.rejected > 1 else ""
                raise InputError(first_error + more)
    if not counts.lines:  # rows that are all rejected have raised
        logger.warning("%s: holds no inputs", "standard input" if input_path == "-" else input_path)
    if counts.blank:
        logger.warning("blank lines, whose predictions are null: %d", counts.blank)
    if counts.truncated:
        logger.warning(
            f"{counts.truncated} of {counts.answers} inputs are longer than the model reads and were cut; their "
            'answers have "truncated"'
        )
    if counts.rejected:
        place = "" if output_path == "-" else f"; they are in {rejected_path(output_path)}"
        total = counts.answers + counts.rejected
        logger.error("%d of %d rows are not answered%s; the first: %s", counts.rejected, total, place, first_error)
    return counts


def _chunks(rows: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield rows in chunks that do not cut documents, since their sentences are each other's context."""
    chunk: list[Record] = []
    for row in rows:
        document = row.fields.get("document")
        if len(chunk) >= CHUNK and (document is None or document != chunk[-1].fields.get("document")):
            yield chunk
            chunk = []
        chunk.append(row)
    if chunk:
        yield chunk


def _encoded(predictor: Predictor, chunks: Iterator[list[Record]], path: str) -> Iterator[tuple[list[Record], Any]]:
    """Yield chunks and their rows of tokens, which a thread makes of the next one while a GPU answers this one."""
    # Who writes to a pipe may wait for answers, and a thread that waits for a pipe would not end.
    if path == "-" or not is_file(path) or not isinstance(predictor, TaskPredictor):
        yield from ((rows, None) for rows in chunks)
        return

    def make_next() -> tuple[list[Record], Any]:
        rows, encoded = next(chunks, []), None
        if inputs := _inputs_of(rows):
            with contextlib.suppress(BaseException):  # a panic of the tokenizer, say, is raised again by answering them
                encoded = predictor.encode(inputs)
        return rows, encoded

    with ThreadPoolExecutor(1) as executor:
        following = executor.submit(make_next)
        while (made := following.result())[0]:
            following = executor.submit(make_next)
            yield made


def _inputs_of(rows: Sequence[Record]) -> list[PredictionInput]:
    return [row.fields for row in rows if not row.is_blank and not row.error]


def _answer_rows(predictor: Predictor, rows: Sequence[Record], encoded: Any = None) -> Iterator[tuple[Record, Answer]]:
    """Yield each row with its answer, or with the reason why there is none, in order."""
    inputs = _inputs_of(rows)

    def answer_part(part: Sequence[PredictionInput]) -> list[dict[str, Any]]:
        return predictor.answer(part, encoded if part is inputs else None)

    parts = halved(answer_part, inputs) if inputs else ()
    answers = (answer for _, part in parts for answer in ([part] if isinstance(part, InputError) else part))
    for row in rows:
        if row.error:
            yield row, InputError(row.error)
        elif row.is_blank:
            yield row, {**row.fields, "prediction": None, "blank": True}
        else:
            answer = next(answers)
            yield row, InputError(f"{row.where}: {answer}") if isinstance(answer, InputError) else answer


def answer_inputs(predictor: Predictor, inputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Check and answer inputs that do not come from a file; an input without "id" has its number from 0 as id.

    One that cannot be answered has an "error" in its answer. InputError if that is so for all of them.
    """
    records = (Record(f"input {number}", dict(item)) for number, item in enumerate(inputs, start=1))
    rows = [input_row(record, predictor.form, number) for number, record in enumerate(records)]
    answers = [answer for _, answer in _answer_rows(predictor, rows)]
    if answers and all(isinstance(answer, InputError) for answer in answers):
        raise next(answer for answer in answers if isinstance(answer, InputError))
    return [
        {"id": row.fields["id"], "prediction": None, "error": str(answer)} if isinstance(answer, InputError) else answer
        for row, answer in zip(rows, answers)
    ]


class TaskPredictor:
    """A fine-tuned model, or an ensemble of models of the same task."""

    def __init__(self, models: Sequence[TaskModel], precision: str | None = None) -> None:
        first = models[0]
        self.models, self.precision = models, precision
        if precision and any(model.encoder is not None for model in models):
            raise UsageError(f"{first.task.name}: its frozen features are of float32; leave out --precision")
        self.task = first.task
        self.kind = kind_of(first.task)
        self.data_task: Task | None = first.task
        self.form = self.kind.form
        # Models of other authors have nothing of a dev set.
        unfitted = {"null_threshold": NULL_LOGIT_DIFFERENCE} if self.task.has_impossible else {}
        own = [{**unfitted, **fitted_of(model.description)} for model in models]
        shared = [key for key in own[0] if all(key in fitted for fitted in own)]
        self.fitted: dict[str, Any] = {key: np.mean([one[key] for one in own], axis=0).tolist() for key in shared}

        # Means over models need the same outputs, for spans also the same rows of tokens.
        for key in ("name", "kind", "pair", "has_impossible"):
            ours, *others = dict.fromkeys(getattr(model.task, key) for model in models)
            if others:
                raise UsageError(f"an ensemble of models with {key} {ours} and {others[0]}: give models of one task")
        labels, *others = dict.fromkeys(model.task.labels for model in models)
        if others:
            raise UsageError(
                f"{self.task.name}: an ensemble averages outputs, so the labels of its models must have the same "
                f"order; found {', '.join(labels)} and {', '.join(others[0])}"
            )
        keys = ("max_seq_length", "doc_stride", "max_query_length")
        rows = {(model.tokenizer.sha256, *(getattr(model.config, key) for key in keys)) for model in models}
        if self.kind.shares_rows and len(rows) > 1:
            raise UsageError(
                f"{self.task.name}: an ensemble averages start and end logits, so its models must share vocabulary, "
                "max_seq_length, doc_stride and max_query_length; these do not"
            )

    def encode(self, inputs: Sequence[PredictionInput]) -> tuple[list[Any], list[EncodedSet]]:
        """Return the examples of inputs, and their rows for each model, which has its own tokenizer."""
        examples = [self.kind.parse(str(number), item) for number, item in enumerate(inputs)]
        return examples, [self.kind.encode(examples, model.tokenizer, model.config) for model in self.models]

    def answer(self, inputs: Sequence[PredictionInput], encoded: Any = None) -> list[dict[str, Any]]:
        """Answer inputs; probabilities are means over the models. Answers to texts that were cut have "truncated"."""
        # Sentences without words have no row.
        examples, rows = encoded or self.encode(inputs)
        outputs = [
            (own, model.logits(own, precision=self.precision)) for model, own in zip(self.models, rows) if own.num_rows
        ]
        truncated = {int(index) for own, _ in outputs for index in own.truncated}
        answers = self.kind.answer(examples, outputs, self.models[0].config, self.fitted)
        for item, answer in zip(inputs, answers):
            if self.form == "tagging" and "text" in item:
                _add_offsets(item["text"], answer)
        return [
            {**answer, "truncated": True} if index in truncated else answer
            for index, answer in enumerate(_with_ids(inputs, answers))
        ]


class PretrainingPredictor:
    """A pre-trained model that fills [MASK], or tells whether one text follows another."""

    def __init__(
        self, directory: Path, task: str, device: str = "cpu", precision: str = "float32", tokens: bool = False
    ) -> None:
        self.task, self.precision, self.tokens = task, precision, tokens
        self.device = torch.device(device)
        self.form = "pair" if task == "nsp" else "text"
        self.data_task: Task | None = None
        self.tokenizer = Tokenizer.from_directory(directory)
        self.model, report = load_model(BertForPreTraining, directory)

        # A head of random weights would answer without any error.
        heads = (NEXT_SENTENCE,) if task == "nsp" else WORD_HEADS
        if any(name.startswith(heads) for name in report.created):
            raise UsageError(
                f"{directory}: a {report.source_architecture} has no head for {task}; give a pre-trained model"
            )
        check_embeddings(directory, self.model.config, self.tokenizer, pair_task="nsp" if task == "nsp" else "")
        if task == "nsp" and not self.model.has_trained_next_sentence:
            raise UsageError(
                f"{directory}: its next-sentence head was never trained (objective=mlm); give a model trained with "
                "next sentences"
            )
        self.model.to(self.device).eval()
        self.max_seq_length = self.model.config.max_position_embeddings

    def answer(self, inputs: Sequence[PredictionInput], encoded: Any = None) -> list[dict[str, Any]]:
        """Answer inputs of {"text"}, for mlm with [MASK] in it, or of {"text", "text_b"}."""
        answer = {"mlm": self._fill, "nsp": self._classify_pairs, "pll": self._score}[self.task]
        with autocast(self.device, self.precision):
            return _with_ids(inputs, answer(inputs))

    def _score(self, inputs: Sequence[PredictionInput]) -> list[dict[str, Any]]:
        """Return the pseudo-log-likelihood of each text, in nats, and if asked for its tokens' part of it."""
        rows = [self.tokenizer.encode(item["text"]) for item in inputs]
        for item, row in zip(inputs, rows):
            if not 0 < len(row) <= self.max_seq_length - 2:
                raise InputError(
                    f"pll: {item['text'][:60]!r} has {len(row)} tokens, expected 1 to {self.max_seq_length - 2}"
                )
        answers = []
        for row, scores in zip(rows, token_scores(self.model, self.tokenizer, rows)):
            answer: dict[str, Any] = {"prediction": rounded(float(np.cumsum(scores)[-1]))}
            if self.tokens:
                answer["tokens"] = [[self.tokenizer.tokens[index], rounded(own)] for index, own in zip(row, scores)]
            answers.append(answer)
        return answers

    @torch.inference_mode()
    def _fill(self, inputs: Sequence[PredictionInput]) -> list[dict[str, Any]]:
        # One text at a time, since each has its own number of masks.
        answers = []
        for item in inputs:
            # The mask may be spelled as the vocabulary does, or as [MASK].
            text = item["text"].replace(self.tokenizer.names[-1], MASK)
            ids, positions = self._masked_ids(text)
            output = self.model(
                torch.tensor([ids], device=self.device),
                masked_lm_positions=torch.tensor([positions], device=self.device),
            )
            masks = []
            # Each mask is filled with its best token, from left to right.
            for row in softmax(output.prediction_logits[0].float().cpu().numpy()):
                best = np.argsort(-row, kind="stable")[:NUM_CANDIDATES]
                masks.append([{"token": self.tokenizer.tokens[i], "probability": rounded(row[i])} for i in best])
                text = text.replace(MASK, self.tokenizer.surfaces[best[0]][0], 1)
            answers.append({"prediction": text, "text": text, "masks": masks})
        return answers

    def _masked_ids(self, text: str) -> tuple[list[int], list[int]]:
        """Encode a text with [MASK] as the special token, which the tokenizer itself reads as plain text.

        A blank in front of it belongs to the word that is masked.
        """
        ids = [self.tokenizer.cls_id]
        positions = []
        *parts, last = text.split(MASK)
        for part in parts:
            ids += self.tokenizer.encode(part.rstrip())
            positions.append(len(ids))
            ids.append(self.tokenizer.mask_id)
        ids += [*self.tokenizer.encode(last), self.tokenizer.sep_id]
        if not positions:
            raise InputError(f"mlm: no {MASK} in {text[:60]!r}; write {MASK} for each word to fill in")
        if len(ids) > self.max_seq_length:
            raise InputError(
                f"mlm: {text[:60]!r} has {len(ids)} tokens, expected at most {self.max_seq_length}; shorten it"
            )
        return ids, positions

    @torch.inference_mode()
    def _classify_pairs(self, inputs: Sequence[PredictionInput]) -> list[dict[str, Any]]:
        pairs = [(item["text"], item["text_b"]) for item in inputs]
        encoded = encode_texts(pairs, self.tokenizer, self.max_seq_length)

        # Batches go by length; the results return to the order of the inputs.
        probabilities = np.zeros((len(pairs), 2))
        for units in prediction_batches(encoded.unit_lengths(), TOKENS_PER_BATCH):
            batch = {name: torch.from_numpy(array).to(self.device) for name, array in encoded.padded(units).items()}
            no_position = torch.zeros(len(units), 0, dtype=torch.long, device=self.device)  # skips the vocabulary
            output = self.model(
                batch["input_ids"], batch["attention_mask"], batch["token_type_ids"], masked_lm_positions=no_position
            )
            probabilities[units] = softmax(output.seq_relationship_logits.float().cpu().numpy())
        return [
            {
                "prediction": bool(row[0] >= row[1]),
                "is_next": bool(row[0] >= row[1]),
                "probabilities": {"is_next": rounded(row[0]), "random": rounded(row[1])},
                **({"truncated": True} if index in encoded.truncated else {}),
            }
            for index, row in enumerate(probabilities)
        ]


def _add_offsets(text: str, answer: dict[str, Any]) -> None:
    """Add to the entities of an answer where they are in the text, in characters."""
    places, end = [], 0
    for word in answer["words"]:
        start = text.index(word, end)
        places.append((start, end := start + len(word)))
    for entity in answer["entities"]:
        entity |= {"start": places[entity["start_word"]][0], "end": places[entity["end_word"] - 1][1]}


def _with_ids(inputs: Sequence[PredictionInput], answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Put the id of its input, or the input's number from 0, before each answer."""
    return [{"id": item.get("id", str(number)), **answer} for number, (item, answer) in enumerate(zip(inputs, answers))]
