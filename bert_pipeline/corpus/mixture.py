"""Mixtures: weights of sources, and smoothed sampling of languages, for vocabularies and instances.

The *source* of a document is the part of its id before the colon ("enwiki" of "enwiki:12"). With weight w a training
document counts w times as much as it does by default: its words in a vocabulary, its passes in instances. Held-out
documents keep the weight 1, so that the measures of two mixtures can be compared.
Source: google-research/bert, multilingual.md: each language's share of the text is raised to the power of 0.7.
"""

import dataclasses
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import Field

from bert_pipeline.configuration import changed_settings, configuration, to_mapping
from bert_pipeline.corpus.near_duplicates import count_words
from bert_pipeline.corpus.parquet import read_sentences
from bert_pipeline.errors import UsageError
from bert_pipeline.manifest import Manifest
from bert_pipeline.randomness import combine, fraction, key_of_text

_DECIMALS = 6
"""Weights are rounded to these, so that they do not depend on the last bit of a machine's logarithm."""
_PASSES = 1 << 32
"""Counter of the draw that decides about the last pass of a document."""


@configuration
class MixtureConfig:
    """How much of the training documents is read, by source and language."""

    source_weights: dict[str, Annotated[float, Field(ge=0, le=10_000, allow_inf_nan=False)]] = dataclasses.field(
        default_factory=dict
    )
    """How often the documents of a source count, such as {books: 2}, at most 10,000; 1 for the others, 0 leaves a
    source out."""
    language_exponent: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Power to which the share of each language is raised; the multilingual model has 0.7, 1 keeps the shares."""

    @property
    def is_plain(self) -> bool:
        """True if every document counts once."""
        return self.language_exponent == 1.0 and all(weight == 1.0 for weight in self.source_weights.values())


def recorded_settings(config: MixtureConfig, *optional: str) -> dict[str, Any]:
    """Return the settings for a manifest, without those of the mixture where there is none, and `optional` defaults."""
    names = {field.name for field in dataclasses.fields(MixtureConfig)} if config.is_plain else set()
    names |= set(optional) - changed_settings(config).keys()
    return {name: value for name, value in to_mapping(config).items() if name not in names}


def parse_weights(texts: Sequence[str]) -> dict[str, float]:
    """Parse "wikipedia=1" "books=2". UsageError if one is malformed or given twice."""
    weights: dict[str, float] = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            weight = float(number)
        except ValueError:
            raise UsageError(f"{text!r}: expected a source and its weight, such as books=2") from None
        if not name or name in weights:
            raise UsageError(f"{text!r}: the source is {'given twice' if name else 'missing'}, such as books=2")
        weights[name] = weight
    return weights


# --- statistics of a corpus ---


def count_texts(table: pa.Table, words: np.ndarray) -> list[dict[str, Any]]:
    """Count the training documents of a table and their `words` (N,) by source and language."""
    rows = zip(sources_and_languages(table), table.column("split").to_pylist(), words.tolist())
    return sum_texts(
        {"source": source, "language": language, "documents": 1, "words": number}
        for (source, language), split, number in rows
        if split == "train"
    )


def sum_texts(texts: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Sum the counts of each source and language; sorted by both."""
    documents: Counter[tuple[str, str]] = Counter()
    words: Counter[tuple[str, str]] = Counter()
    for text in texts:
        key = text["source"], text["language"]
        documents[key] += text["documents"]
        words[key] += text["words"]
    return [
        {"source": source, "language": language, "documents": documents[source, language], "words": number}
        for (source, language), number in sorted(words.items())
    ]


def sources_and_languages(table: pa.Table) -> list[tuple[str, str]]:
    """Return the source and the language of each document of a table."""
    rows = zip(table.column("document_id").to_pylist(), table.column("language").to_pylist())
    return [(identifier.partition(":")[0], language) for identifier, language in rows]


# --- weights ---


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightedText:
    """The training documents of one source and language."""

    source: str
    language: str
    documents: int
    words: int
    weight: float
    share: float
    """Share of all words that is asked for."""


def weigh_texts(corpus: Manifest, config: MixtureConfig) -> list[WeightedText]:
    """Return the weight of each source and language of a corpus.

    The weight of a language keeps the number of words of the whole. UsageError for a source that the corpus does not
    have.
    """
    texts = corpus.counts["texts"]
    sources = sorted({text["source"] for text in texts})
    if unknown := sorted(config.source_weights.keys() - set(sources)):
        raise UsageError(
            f"source_weights: found {', '.join(unknown)}, expected sources of the corpus, the first parts of document "
            f"ids: {', '.join(sources[:20])}{' …' if len(sources) > 20 else ''}"
        )
    weighted = [text["words"] * config.source_weights.get(text["source"], 1.0) for text in texts]
    total = sum(weighted)
    if not total:
        raise UsageError("source_weights: all sources with text have the weight 0; give one of them a larger one")

    # The share p of a language becomes p^s / sum(p^s): its documents count so many times as that is larger than p.
    languages: dict[str, float] = {}
    for text, words in zip(texts, weighted):
        languages[text["language"]] = languages.get(text["language"], 0.0) + words / total
    smoothed = {name: share**config.language_exponent for name, share in languages.items() if share}
    factors = {name: share / sum(smoothed.values()) / languages[name] for name, share in smoothed.items()}
    weights = [
        round(config.source_weights.get(text["source"], 1.0) * factors.get(text["language"], 0.0), _DECIMALS)
        for text in texts
    ]
    total = sum(text["words"] * weight for text, weight in zip(texts, weights))
    if not total:
        raise UsageError(
            f"source_weights: the weights of all sources with text are 0 when rounded to {_DECIMALS} decimals; "
            "give larger ones"
        )
    return [
        WeightedText(**text, weight=weight, share=text["words"] * weight / total)
        for text, weight in zip(texts, weights)
    ]


# --- documents of one shard ---


PASSES = np.dtype([("key", "<u8"), ("text", "<i8"), ("words", "<i8"), ("passes", "<i8")])
"""How often a training document is read: `key_of_text(document_id)`, the index of its source and language, its words,
and its passes."""


def plan_passes(shard: Path | str, texts: Sequence[WeightedText], passes: int, seed: int) -> np.ndarray:
    """Return `PASSES` (D,) of the training documents of a corpus shard, by key, for `passes` at weight 1.

    The product of weight and passes is rounded down, or up where a hash of the seed and the document's id is below its
    fraction: a larger weight adds passes and changes none.
    """
    numbers = {(text.source, text.language): index for index, text in enumerate(texts)}
    parts = [np.zeros(0, dtype=PASSES)]
    for table, offsets, sentences in read_sentences(shard):
        is_train = pc.equal(table.column("split"), "train").combine_chunks().to_numpy(zero_copy_only=False)
        train = table.filter(pa.array(is_train))
        part = np.zeros(train.num_rows, dtype=PASSES)
        part["key"] = [key_of_text(identifier) for identifier in train.column("document_id").to_pylist()]
        part["text"] = [numbers[name] for name in sources_and_languages(train)]
        part["words"] = count_words(sentences, offsets)[is_train]
        parts.append(part)
    planned = np.concatenate(parts)
    planned = planned[np.argsort(planned["key"])]
    exact = np.array([text.weight for text in texts])[planned["text"]] * passes
    whole = np.floor(exact)
    is_more = fraction(combine(combine(seed, planned["key"]), _PASSES)) < exact - whole
    planned["passes"] = whole + is_more
    return planned


def describe_mixture(texts: Sequence[WeightedText], read: Mapping[str, Sequence[int]]) -> list[dict[str, Any]]:
    """Return the rows of a mixture for a manifest: what was asked for, and what was `read`, by name, of each text.

    The share of each is given too, such as "words_read_share".
    """
    rows = []
    for index, text in enumerate(texts):
        row = dataclasses.asdict(text) | {"share": round(text.share, _DECIMALS)}
        for name, numbers in read.items():
            row |= {name: numbers[index], f"{name}_share": round(numbers[index] / max(1, sum(numbers)), _DECIMALS)}
        rows.append(row)
    return rows
