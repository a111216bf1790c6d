"""Instances of the generated encyclopaedia without Beam, for machines that have the training's libraries only."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from bert_pipeline.instances.pairs import (
    InstancesConfig,
    InstanceStatistics,
    TokenizedDocuments,
    make_instances,
    make_pairs,
)
from bert_pipeline.instances.parquet import INSTANCES_PER_ROW_GROUP, InstanceWriter
from bert_pipeline.manifest import Manifest, load_manifest, publishing
from bert_pipeline.randomness import key_of_text
from bert_pipeline.sample.articles import write_articles
from bert_pipeline.sample.wikitext import article_text
from bert_pipeline.sample.world import make_world
from bert_pipeline.vocabulary.tokenizer import SentenceEncoder, Tokenizer
from bert_pipeline.vocabulary.wordpiece import VocabularyConfig, WordCounter, train

ARTICLES_PER_DOCUMENT = 8
"""Generated articles are short: several make a document, so that most instances are full, as with real articles."""

HELD_OUT_DOCUMENTS = 4


def sample_instances(directory: Path, *, vocab_size: int, max_seq_length: int, num_articles: int = 1200) -> Manifest:
    """Return an instance directory with dynamic masks, made where it is not there yet."""
    target = directory / f"sample-{num_articles}-{vocab_size}-{max_seq_length}"
    if (target / "manifest.json").is_file():
        return load_manifest(target, kind="instances")
    documents = _documents(num_articles)
    counter = WordCounter(do_lower_case=True)
    for document in documents:
        counter.add(document)
    vocabulary = VocabularyConfig(vocab_size=vocab_size, pad_with_unused=True)
    tokenizer = Tokenizer.from_tokens(train(sorted(counter.counts().items()), vocabulary), do_lower_case=True)
    config = InstancesConfig(max_seq_length=max_seq_length)
    configuration = {"max_seq_length": max_seq_length, "num_articles": num_articles}
    with publishing(target, kind="instances", configuration=configuration, inputs={}) as draft:
        tokenizer.save(draft.path)
        parts = {"held_out": documents[:HELD_OUT_DOCUMENTS], "train": documents[HELD_OUT_DOCUMENTS:]}
        for split, some in parts.items():
            (draft.path / split).mkdir()
            name = f"{split}/instances-00000.parquet"
            draft.rows[name] = _write(draft.path / name, some, tokenizer, config)
    return load_manifest(target, kind="instances")


def _documents(num_articles: int) -> list[list[str]]:
    articles = [
        [sentence for passage in article_text(article) for sentence in passage]
        for article in write_articles(make_world(1, num_articles))
    ]
    starts = range(0, len(articles), ARTICLES_PER_DOCUMENT)
    return [[text for article in articles[s : s + ARTICLES_PER_DOCUMENT] for text in article] for s in starts]


def _write(path: Path, documents: Sequence[Sequence[str]], tokenizer: Tokenizer, config: InstancesConfig) -> int:
    tokens, lengths = SentenceEncoder(tokenizer).encode(pa.array([text for document in documents for text in document]))
    ends = np.cumsum([len(document) for document in documents])
    tokenized = TokenizedDocuments(
        tokens=tokens,
        sentence_offsets=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)]),
        document_offsets=np.concatenate([np.zeros(1, dtype=np.int64), ends]),
        keys=np.array([key_of_text(f"sample:{index}") for index in range(len(documents))], dtype=np.uint64),
    )
    pairs = make_pairs(tokenized, config)
    statistics = InstanceStatistics(config.max_seq_length, tokenizer.unk_id, tokenizer.mask_id)
    with InstanceWriter(path, static_masks=False) as writer:
        for start in range(0, len(pairs), INSTANCES_PER_ROW_GROUP):
            some = pairs.take(slice(start, start + INSTANCES_PER_ROW_GROUP))
            writer.write(make_instances(tokenized, some, tokenizer, config, statistics))
        return writer.rows
