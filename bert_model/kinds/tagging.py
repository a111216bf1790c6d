"""Tagging of words: sentences, or the documents they form, in windows; entities as conlleval counts them.

Shapes: T tokens of all rows.
"""

import dataclasses
import html
import itertools
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bert_model.kinds.base import (
    TEMPERATURE,
    Answers,
    Decision,
    Decisions,
    EncodingConfig,
    Evaluation,
    Fitted,
    Kind,
    Outputs,
    Units,
    confusion_tables,
    rounded,
    softmax,
    texts_of,
)
from bert_model.kinds.encoded import EncodedSet, Row, joined
from bert_model.metrics import ner
from bert_model.metrics.analysis import best_temperature, entity_scores
from bert_model.model.config import IGNORED_LABEL
from bert_pipeline.errors import InputError
from bert_pipeline.records import Source
from bert_pipeline.tasks.catalogue import Task
from bert_pipeline.tasks.example import TaggedExample, is_labeled
from bert_pipeline.tasks.ner import COLUMN_SEPARATOR, DOCUMENT_MARK, documents, in_iob, to_bioes, to_iob2
from bert_pipeline.vocabulary.tokenizer import WORDS, Tokenizer

if TYPE_CHECKING:
    from torch import Tensor

Sentences = Sequence[TaggedExample]


class Tagging(Kind):
    """A tag for each word of a sentence."""

    name = form = "tagging"
    architecture = "BertForTokenClassification"
    pipeline = "token-classification"
    reads_first_token = False
    scores_columns = True
    baseline_name = "no entities; without the tag O, the most frequent tag"

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.paper_task = "ner_features" if task.feature_based else "ner"

    def parse(self, key: str, fields: Mapping[str, Any]) -> TaggedExample:
        words = fields["words"] if "words" in fields else split_words(fields["text"])
        return TaggedExample(key, fields.get("document"), tuple(words))

    def fields(self, example: TaggedExample) -> dict[str, Any]:
        return {"words": example.words, "document": example.document}

    def encode_rows(self, examples: Sentences, tokenizer: Tokenizer, config: EncodingConfig) -> EncodedSet:
        """Encode sentences, with `document_context` the documents they form; each word is scored in exactly one window.

        What does not fit into a row becomes several windows, of a document or of a long sentence. The first piece of a
        word carries its label (paper, section 5.3). The other pieces, and words that are only context in a window, are
        ignored.
        """
        index = {label: number for number, label in enumerate(self.task.labels)}
        labeled = all(map(is_labeled, examples))
        room = config.max_seq_length - 2
        max_pieces = max(1, room // 4)  # a longer word keeps its first pieces, so that no word is lost
        rows: list[Row] = []
        numbers = itertools.count()
        for document in documents(examples) if config.document_context else ([example] for example in examples):
            # The words of the document: pieces, example and label.
            pieces: list[list[int]] = []
            owners: list[int] = []
            labels: list[int] = []
            for example, number in zip(document, numbers):
                own = [word[:max_pieces] for word in tokenizer.encode_words(example.words, follows=bool(pieces))]
                pieces.extend(own)
                owners.extend([number] * len(own))
                if labeled:
                    labels.extend(_tag_labels(self.task, example, index))
            if not pieces:  # sentences without words
                continue

            # One row for each window. Only the first piece of a scored word is scored, and has a label.
            lengths = np.asarray([len(own) for own in pieces], dtype=np.int64)
            for first, end, (scored_first, scored_end) in document_windows(lengths, room):
                row = [tokenizer.cls_id, *itertools.chain.from_iterable(pieces[first:end]), tokenizer.sep_id]
                begins = np.cumsum([1, *lengths[first:end]])[scored_first - first : scored_end - first]
                columns = {"scored": np.zeros(len(row), dtype=np.int32)}
                columns["scored"][begins] = 1
                if labeled:
                    columns["labels"] = np.full(len(row), IGNORED_LABEL)
                    columns["labels"][begins] = labels[scored_first:scored_end]
                rows.append(Row(np.asarray(row, np.int32), len(row), owners[scored_first], token_columns=columns))
        return joined(rows, len(examples), tokenizer)

    def num_terms(self, tensors: Mapping[str, "Tensor"], class_weights: "Tensor | None") -> float:
        if class_weights is None:
            return int((tensors["labels"] != IGNORED_LABEL).sum())
        return super().num_terms(tensors, class_weights)

    def fit(self, examples: Sentences, encoded: EncodedSet, logits: np.ndarray) -> dict[str, Any]:
        scored = encoded.token_columns["scored"] > 0
        return {TEMPERATURE: best_temperature(logits[scored], encoded.token_columns["labels"][scored])}

    def decode(self, examples: Sentences, encoded: EncodedSet, logits: np.ndarray, fitted: Fitted) -> dict[str, Any]:
        chosen = by_word(examples, encoded, logits.argmax(axis=-1))
        return {e.example_id: tuple(self.task.labels[index] for index in own) for e, own in zip(examples, chosen)}

    def is_collapsed(self, predictions: Mapping[str, Any]) -> bool:
        return len(predictions) >= 3 and len(set(itertools.chain.from_iterable(predictions.values()))) <= 1

    def check_prediction(self, example: TaggedExample, value: Any) -> None:
        if isinstance(value, str) or len(value) != len(example.words):
            raise InputError(
                f"{self.task.name}: example {example.example_id!r} has {len(value)} predicted tags, expected "
                f"{len(example.words)}, one a word"
            )

    def metrics(self, ids: Sequence[str], gold: Sequence[Any], predicted: Sequence[Any]) -> dict[str, float]:
        scores = ner.score_tags(gold, predicted)
        return {metric: scores[metric] for metric in self.task.metrics}

    def trivial_predictions(self, train: Sentences, dev: Sentences) -> dict[str, Any]:
        if "O" not in self.task.labels and not train:
            raise InputError(f"{self.task.name}: no training examples, so no baseline can be learned")
        tag = "O" if "O" in self.task.labels else statistics.mode(itertools.chain.from_iterable(self.gold(train)))
        return {example.example_id: (tag,) * len(example.words) for example in dev}

    def units(self, examples: Sentences, ids: Sequence[str], predicted: Sequence[Any]) -> Units:
        return "entities", ids, [ner.count_tags(gold, tags) for gold, tags in zip(self.gold(examples), predicted)]

    def checked(self, where: str, value: Any) -> Any:
        return tuple(in_iob(texts_of(where, value, "tags"), self.task.labels))

    def prediction_files(self, split: str, evaluation: Evaluation) -> dict[str, str]:
        if self.task.scheme == "bioes":
            written = {key: to_bioes(tags) for key, tags in evaluation.predictions.items()}
            evaluation = dataclasses.replace(evaluation, predictions=written)
        return super().prediction_files(split, evaluation)

    def decisions(
        self, examples: Sentences, encoded: EncodedSet, logits: np.ndarray, evaluation: Evaluation
    ) -> Decisions:
        """Return a decision for each word."""
        confidences = by_word(examples, encoded, softmax(logits, evaluation.fitted).max(axis=-1))
        decided = []
        for example, confidence in zip(examples, confidences):
            words = zip(
                example.tags or (), evaluation.predictions[example.example_id], confidence.tolist(), strict=True
            )
            decided += [Decision(example, a, b, c, a == b, word) for word, (a, b, c) in enumerate(words)]
        return decided

    def tables(self, examples: Sentences, evaluation: Evaluation, decided: Sequence[Decision]) -> dict[str, Any]:
        """Return the tables: the confusion counts words, the classes entities, as conlleval does."""
        words = confusion_tables([d.gold for d in decided], [d.predicted for d in decided], self.task.labels)
        tags = [evaluation.predictions[example.example_id] for example in examples]
        return words | {"classes": entity_scores(self.gold(examples), tags)}

    def page_text(self, decision: Decision) -> str:
        words = [html.escape(word) for word in decision.example.words]
        if decision.word is not None:
            words[decision.word] = f"<mark>{words[decision.word]}</mark>"
        return " ".join(words)

    def answer(self, examples: Sentences, outputs: Outputs, config: EncodingConfig, fitted: Fitted) -> Answers:
        # Models may cut documents into different windows, so their probabilities are averaged word by word.
        labels = self.task.labels
        means = [np.zeros((len(example.words), len(labels))) for example in examples]
        for encoded, logits in outputs:
            for mean, own in zip(means, by_word(examples, encoded, softmax(logits) / len(outputs))):
                mean += own
        # The tag of the highest mean probability, word by word.
        answers: Answers = []
        for example, rows in zip(examples, means):
            tags = [labels[index] for index in rows.argmax(axis=1)]
            shown = to_bioes(tags) if self.task.scheme == "bioes" else tags
            answers.append(
                {
                    "prediction": shown,
                    "words": list(example.words),
                    "tags": shown,
                    "probabilities": [rounded(value) for value in rows.max(axis=1)],
                    "entities": entities(example.words, tags),
                }
            )
        return answers


def split_words(text: str) -> tuple[str, ...]:
    """Split a sentence at white space and around punctuation, as BERT's tokenizer does before WordPiece."""
    return tuple(word for word, _ in WORDS.pre_tokenize_str(text))


def by_word(examples: Sentences, encoded: EncodedSet, values: np.ndarray) -> list[np.ndarray]:
    """Return what the words of each example have of values of tokens, (T, …): every word is scored once, in order."""
    ends = np.cumsum([len(example.words) for example in examples])
    return np.split(values[encoded.token_columns["scored"] > 0], ends[:-1])


def _tag_labels(task: Task, example: TaggedExample, index: dict[str, int]) -> list[int]:
    tags = example.tags or ()
    if len(tags) != len(example.words):
        raise InputError(
            f"{task.name}: example {example.example_id} has {len(example.words)} words and {len(tags)} tags"
        )
    for tag in tags:
        if tag not in index:
            raise InputError(
                f"{task.name}: example {example.example_id} has the tag {tag!r}, expected {', '.join(task.labels)}"
            )
    return [index[tag] for tag in tags]


def document_windows(piece_counts: np.ndarray, room: int) -> Iterator[tuple[int, int, tuple[int, int]]]:
    """Yield (first word, end word, (first scored, end scored)) over the words of one document.

    A document that fits is one window. A longer one is cut between words into runs of about half the room; each run is
    scored in a window of its own, which is filled with as many adjacent words as fit, evenly left and right. The runs
    partition the words, so every word is scored exactly once.
    """
    num_words = len(piece_counts)
    ends = np.cumsum(piece_counts)  # pieces up to and including word w
    total = int(ends[-1])
    if total <= room:
        yield 0, num_words, (0, num_words)
        return
    starts = ends - piece_counts
    num_runs = -(-total // max(1, room // 2))
    target = total / num_runs  # runs of equal length, so that the last one is not short
    scored_first = 0
    while scored_first < num_words:
        # A run ends with the last word that fits into the target, but has at least one.
        limit = starts[scored_first] + target
        scored_end = max(scored_first + 1, int(np.searchsorted(ends, limit, side="right")))
        used = int(ends[scored_end - 1] - starts[scored_first])
        # Half of the free room goes to the left, the rest to the right, and what the right does not need to the left.
        first, end = scored_first, scored_end
        left_room = (room - used) // 2
        while first > 0 and ends[scored_first - 1] - starts[first - 1] <= left_room:
            first -= 1
        while end < num_words and ends[end] - starts[first] <= room:
            end += 1
        while first > 0 and ends[end - 1] - starts[first - 1] <= room:
            first -= 1
        yield first, end, (scored_first, scored_end)
        scored_first = scored_end


def entities(words: Sequence[str], tags: Sequence[str]) -> list[dict[str, Any]]:
    """Return the entities of IOB2 tags, as conlleval counts them; `end_word` is one past the last word."""
    return [
        {"type": name, "start_word": start, "end_word": end, "text": " ".join(words[start:end])}
        for start, end, name in sorted(ner.chunks(tags))
        if tags[start].partition("-")[0] in ("B", "I")  # tags of words may have hyphens too
    ]


def score_columns(task: Task, examples: Sentences, source: Source) -> dict[str, float]:
    """Score conlleval's columns: all lines of the file, whose words and gold tags must be those of `examples`."""
    expected = ((word, tag) for example in examples for word, tag in zip(example.words, example.tags or ()))
    sentences: list[list[tuple[str, str]]] = [[]]  # gold and predicted tag of each word
    width = 0
    for record in source.lines():
        where = record.where
        if record.error:
            raise InputError(record.error)
        fields = [field for field in COLUMN_SEPARATOR.split(record.line) if field]
        if not fields:
            sentences.append([])
            continue
        # The first line decides whether there are gold tags, and every line must have the same columns.
        num_columns = min(3, len(fields))
        width = width or max(2, num_columns)
        if num_columns != width:
            raise InputError(f"{where}: {len(fields)} columns, expected {width}")
        # The examples leave out document marks; conlleval counts them as words outside of entities.
        word, tag = fields[0], "O"
        if word != DOCUMENT_MARK:
            word, tag = next(expected, ("the end of the file", ""))
        if fields[0] != word:
            raise InputError(f"{where}: word {fields[0]!r}, expected {word!r} as in the data file")
        sentences[-1].append((fields[-2] if width == 3 else tag, fields[-1]))

    # What the loop has not consumed has no prediction.
    if num_missing := sum(1 for _ in expected):
        raise InputError(
            f"{source}: ends {num_missing} words before the data file does, expected a prediction for every word"
        )
    gold, predicted = ([[tags[side] for tags in sentence] for sentence in sentences] for side in (0, 1))
    as_iob2 = [to_iob2(tags, task.labels) for tags in gold]
    if width == 3:  # whichever scheme the gold tags are in, they must be those of the data file
        found = [tag for tags in as_iob2 for tag in tags if tag != "O"]
        if found != [tag for example in examples for tag in example.tags or () if tag != "O"]:
            raise InputError(f"{source.name}: its gold tags (the last column but one) are not those of the data file")
        gold, predicted = ([in_iob(tags, task.labels) for tags in side] for side in (gold, predicted))
    else:  # the predictions may be in another scheme than the data file
        gold, predicted = as_iob2, [to_iob2(tags, task.labels) for tags in predicted]
    scores = ner.score_tags(gold, predicted)
    return {metric: scores[metric] for metric in task.metrics}
