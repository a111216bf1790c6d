"""Example records: returned by task readers, used by models, metrics and submissions."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

from bert_pipeline.errors import InputError

Kind = Literal["classification", "multilabel", "regression", "span", "choice", "tagging", "embedding"]


@dataclasses.dataclass(frozen=True, slots=True)
class TextExample:
    """A text or a pair of texts with a class, classes or a number."""

    example_id: str
    """The index column of the file if it has one, else the number of the row, from 0."""
    text_a: str
    text_b: str | None = None
    label: str | float | tuple[str, ...] | None = None
    """The name of a class, those that apply (multilabel), or a regression target; None if the file has no labels."""

    @property
    def gold(self) -> str | float | tuple[str, ...] | None:
        """What a model is to predict; None without a label. So it is for the other kinds of examples."""
        return self.label

    @property
    def texts(self) -> tuple[str, ...]:
        """All texts, for vocabulary checks and display."""
        return (self.text_a,) if self.text_b is None else (self.text_a, self.text_b)

    @property
    def group_keys(self) -> tuple[str, ...]:
        """The keys that train and dev must not share: each of the two texts."""
        return tuple(" ".join(text.casefold().split()) for text in self.texts)


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """One accepted answer: its text, and the offset of its first character in the context."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True, slots=True)
class SpanExample:
    """A question about a context; the answer is a span of the context, or there is none."""

    example_id: str
    title: str
    """The article that the context comes from."""
    context: str
    question: str
    answers: tuple[Answer, ...] = ()
    is_impossible: bool = False

    @property
    def gold(self) -> tuple[Answer, ...] | None:
        return self.answers if self.answers or self.is_impossible else None

    @property
    def texts(self) -> tuple[str, ...]:
        return self.context, self.question

    @property
    def group_keys(self) -> tuple[str, ...]:
        """The title of the article, or the context if it has none."""
        return (self.title or self.context,)


@dataclasses.dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A context and several endings, one of them correct."""

    example_id: str
    context: str
    """SWAG: the first sentence."""
    endings: tuple[str, ...]
    """SWAG: the opening of the second sentence and each ending of it."""
    label: int | None = None
    """Index of the correct ending; None if the file has no labels."""
    source: str = ""
    """Origin of the example (SWAG: the video); examples of one source stay in one split."""

    @property
    def gold(self) -> int | None:
        return self.label

    @property
    def texts(self) -> tuple[str, ...]:
        return (self.context, *self.endings)

    @property
    def group_keys(self) -> tuple[str, ...]:
        """The source and the context."""
        return (f"source {self.source}", f"context {self.context}") if self.source else (self.context,)


@dataclasses.dataclass(frozen=True, slots=True)
class TaggedExample:
    """A sentence of words with one tag each, and the number of its document."""

    example_id: str
    document: int | None
    """Number of the document in the file, from 0; None where nothing tells documents apart."""
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    """Converted to IOB2; None if the file has no tags."""

    @property
    def gold(self) -> tuple[str, ...] | None:
        return self.tags

    @property
    def texts(self) -> tuple[str, ...]:
        return (" ".join(self.words),)

    @property
    def group_keys(self) -> tuple[str, ...]:
        """The document, or the sentence if it has none."""
        return self.texts if self.document is None else (str(self.document),)


Example = TextExample | SpanExample | ChoiceExample | TaggedExample


def defect_note(defect: str, count: int, ids: Sequence[str]) -> str:
    """Return a defect with its count and the ids of the first examples that have it, if they are known."""
    return f"{defect}: {count}" + (f" (ids {', '.join(ids)}{', …' if count > len(ids) else ''})" if ids else "")


def is_labeled(example: Example) -> bool:
    """Return whether an example has its label, answers or tags."""
    return example.gold is not None


SHOWN_IDS = 3
"""Number of examples that the message about a defect names."""


@dataclasses.dataclass(kw_only=True)
class Reading:
    """How the files of a split are read, and what was counted on the way."""

    labeled: bool | None = True
    """True requires labels, None takes them where they are, False does not read them."""
    for_training: bool = False
    """True leaves out answers that cannot be trained on."""
    on_error: Callable[[InputError], None] | None = None
    """Takes the error of a row that is left out; without it the error is raised."""
    separator: str = ""
    encoding: str = "utf-8"
    """Both as `open_source` takes them."""
    incomplete_rows: int = 0
    """Number of TSV rows with too few columns that are counted instead of refused."""
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
    """Defect -> number of rows or answers."""
    ids: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    """Defect -> the first ids of examples that have it, where they are known."""
    rows_refused: int = 0
    number: int = 0
    """Rows so far over all files, those without an example included: the id of the next one, if it has no other."""
    places: dict[str, str] = dataclasses.field(default_factory=dict)
    """Id -> place of the example. Empty if the input is only answered: then memory does not grow with the file."""

    def count(self, defect: str, example_id: str = "") -> None:
        """Count a known defect."""
        self.counts[defect] = self.counts.get(defect, 0) + 1
        ids = self.ids.setdefault(defect, [])
        if example_id and example_id not in ids and len(ids) < SHOWN_IDS:
            ids.append(example_id)

    def enter(self, example_id: str, where: str) -> None:
        """Remember an id. InputError if it is repeated, as predictions are matched by id; input to answer may do so."""
        if place := self.places.get(example_id):
            raise InputError(
                f"{where}: the index {example_id!r} is in {place} already; rename the column if it holds no ids"
            )
        if self.labeled is not False:
            self.places[example_id] = where

    def refuse(self, error: InputError) -> None:
        """Set the row of `error` aside, or raise it if nobody takes such rows."""
        if self.on_error is None:
            raise error
        self.rows_refused += 1
        self.on_error(error)
