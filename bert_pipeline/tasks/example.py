"""Example records: returned by task readers, used by models, metrics and submissions."""

import dataclasses
from typing import Any, Literal, Protocol

Kind = Literal["classification", "regression", "span", "choice", "tagging"]


class Example(Protocol):
    """Common interface: an identity within the file."""

    @property
    def example_id(self) -> str: ...


@dataclasses.dataclass(frozen=True, slots=True)
class TextExample:
    """A text or a pair of texts with a class or a number, for classification and regression."""

    example_id: str
    """The index column of the file if it has one, else the number of the row, from 0."""
    text_a: str
    text_b: str | None = None
    label: str | float | None = None
    """The name of a class, or a regression target as a float; None if the file has no labels."""


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


@dataclasses.dataclass(frozen=True, slots=True)
class TaggedExample:
    """A sentence of words with one tag each, and the number of its document."""

    example_id: str
    document: int
    """Number of the document in the file, from 0."""
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    """Converted to IOB2; None if the file has no tags."""


def example_text(example: Any) -> str:
    """Return all text of an example, one piece per line, for vocabulary checks and display."""
    if isinstance(example, TextExample):
        return example.text_a if example.text_b is None else f"{example.text_a}\n{example.text_b}"
    if isinstance(example, SpanExample):
        return f"{example.context}\n{example.question}"
    if isinstance(example, ChoiceExample):
        return "\n".join((example.context, *example.endings))
    return " ".join(example.words)


def is_labeled(example: Any) -> bool:
    """Return whether an example has its label, answers or tags."""
    if isinstance(example, SpanExample):
        return bool(example.answers) or example.is_impossible
    return (example.tags if isinstance(example, TaggedExample) else example.label) is not None


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """The content of one file: its examples, and the number of defects by kind."""

    examples: list[Any]
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
