"""A small generated corpus and a vocabulary for it, for tests of the jobs."""

import random
from collections.abc import Sequence
from pathlib import Path

import pyarrow.parquet as pq

from bert_pipeline.corpus.parquet import DOCUMENTS_PER_ROW_GROUP, Document, document_table
from bert_pipeline.manifest import publishing
from bert_pipeline.vocabulary.files import SPECIAL_TOKENS
from bert_pipeline.vocabulary.tokenizer import Tokenizer

SYLLABLES = ["ka", "lo", "mi", "ner", "tu", "sa", "vel", "or", "ith", "pan"]
WORDS = [first + second for first in SYLLABLES for second in SYLLABLES]


def make_documents(count: int, *, seed: int = 0, held_out: Sequence[int] = ()) -> list[Document]:
    rng = random.Random(seed)
    documents = []
    for index in range(count):
        sentences = tuple(
            " ".join(rng.choices(WORDS, k=rng.randint(3, 14))).capitalize() + "." for _ in range(rng.randint(1, 20))
        )
        documents.append(
            Document(
                document_id=f"made:{index}",
                title=f"Made {index}",
                language="en",
                sentences=sentences,
                passage_starts=(0,),
                split="held_out" if index in held_out else "train",
            )
        )
    return documents


def write_documents(path: Path, documents: Sequence[Document]) -> int:
    """Write documents as a shard; return their number."""
    table = document_table(list(documents))
    pq.write_table(table, path, row_group_size=DOCUMENTS_PER_ROW_GROUP, compression="zstd", write_page_checksum=True)
    return len(documents)


def make_corpus(directory: Path, shards: Sequence[Sequence[Document]]) -> Path:
    with publishing(directory, kind="corpus", configuration={}, inputs={}) as draft:
        for index, documents in enumerate(shards):
            name = f"documents-{index:05d}.parquet"
            draft.rows[name] = write_documents(draft.path / name, documents)
    return directory


def make_tokenizer() -> Tokenizer:
    pieces = [*SYLLABLES, *(f"##{syllable}" for syllable in SYLLABLES), ".", *WORDS[::3]]
    return Tokenizer.from_tokens([*SPECIAL_TOKENS, *pieces], do_lower_case=True)


def make_vocabulary(directory: Path) -> Path:
    directory.mkdir(parents=True)
    make_tokenizer().save(directory)
    return directory
