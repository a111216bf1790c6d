"""The records that task readers give and that models, metrics and submissions take."""

import dataclasses
from typing import Any, Literal, Protocol

Kind = Literal["classification", "regression", "span", "choice", "tagging"]


class Example(Protocol):
    """What all examples have in common: an identity within their file."""

    @property
    def example_id(self) -> str: ...


@dataclasses.dataclass(frozen=True, slots=True)
class TextExample:
    """A text or a pair of texts with a class or a number: the input of classification and regression."""

    example_id: str
    """The file's own index where it has one, else the number of the row, from 0."""
    text_a: str
    text_b: str | None = None
    label: str | float | None = None
    """A class as its name, a regression target as a float; None where the file hides it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """One accepted answer: its text, and the offset of its first character in the context."""

    text: str
    start: int


@dataclasses.dataclass(frozen=True, slots=True)
class SpanExample:
    """A question about a context whose answer is a span of the context, or which has none."""

    example_id: str
    title: str
    """The article that the context comes from."""
    context: str
    question: str
    answers: tuple[Answer, ...] = ()
    is_impossible: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class ChoiceExample:
    """A context and several endings of which one is right."""

    example_id: str
    context: str
    """SWAG: the first sentence."""
    endings: tuple[str, ...]
    """SWAG: the opening of the second sentence and each ending of it."""
    label: int | None = None
    """The index of the right ending; None where the file hides it."""
    source: str = ""
    """What the example was cut from (SWAG: the video): examples of one source stay in one split."""


@dataclasses.dataclass(frozen=True, slots=True)
class TaggedExample:
    """A sentence of words with a tag for each, and the number of the document it stands in."""

    example_id: str
    document: int
    """Counts from 0 within the file; sentences of one document stand in order."""
    words: tuple[str, ...]
    tags: tuple[str, ...] | None = None
    """In the IOB2 scheme whatever the file's own; None where the file has none."""


def example_text(example: Any) -> str:
    """Return all text of an example, one piece a line: for vocabulary checks and for showing."""
    if isinstance(example, TextExample):
        return example.text_a if example.text_b is None else f"{example.text_a}\n{example.text_b}"
    if isinstance(example, SpanExample):
        return f"{example.context}\n{example.question}"
    if isinstance(example, ChoiceExample):
        return "\n".join((example.context, *example.endings))
    return " ".join(example.words)


@dataclasses.dataclass(frozen=True, slots=True)
class Reading:
    """What a reader found in one file: the examples, and how many defective things beside them, by their name."""

    examples: list[Any]
    counts: dict[str, int] = dataclasses.field(default_factory=dict)
