"""Inputs of any size: dumps, corpora and instances, repeated or generated; existing ones are reused."""

import bz2
import collections
import io
import math
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bert_pipeline.compression import open_bytes
from bert_pipeline.corpus.parquet import DOCUMENT_SCHEMA, DOCUMENTS_PER_ROW_GROUP, Document, read_documents
from bert_pipeline.errors import InputError
from bert_pipeline.instances.columns import offsets_of
from bert_pipeline.instances.pairs import (
    InstancesConfig,
    TokenizedDocuments,
    make_instances,
    make_pairs,
)
from bert_pipeline.instances.parquet import INSTANCES_PER_ROW_GROUP, InstanceWriter
from bert_pipeline.instances.tfrecord import TfrecordWriter
from bert_pipeline.manifest import Manifest, input_of, load_manifest, publishing
from bert_pipeline.parquet_io import footer_sha256
from bert_pipeline.randomness import key_of_text
from bert_pipeline.sample import generate_sample
from bert_pipeline.sample.articles import write_articles
from bert_pipeline.sample.grammar import plain
from bert_pipeline.sample.world import World
from bert_pipeline.vocabulary.encoder import SentenceEncoder
from bert_pipeline.vocabulary.tokenizer import Tokenizer
from bert_pipeline.vocabulary.wordpiece import VocabularyConfig, WordCounter, train

PAGES_PER_STREAM = 100
"""As in Wikimedia's own multistream files."""
ARTICLES_PER_DOCUMENT = 8
"""Generated articles are short: several form a document, so that most instances are full, as with real articles."""
HELD_OUT_DOCUMENTS = 4

_PAGE = re.compile(r"  <page>.*?</page>\n", re.DOTALL)
_TITLE = re.compile(r"(<title>)([^<]*)(</title>)")
_FIRST_ID = re.compile(r"(<id>)(\d+)(</id>)")


def load_or_make(path: Path, make: Callable[[Path], object]) -> Manifest:
    """Return the artifact at a path, which is made if it is missing."""
    if not (path / "manifest.json").is_file():
        print(f"making {path}", file=sys.stderr, flush=True)
        make(path)
    return load_manifest(path)


# ----------------------------------------------------------------------------------------------------------------------
# Dumps


def sample_dump(directory: Path) -> Path:
    """Return the dump of the generated encyclopedia, which is created if it is missing."""
    return next(load_or_make(directory / "sample", generate_sample).path.glob("*.xml.bz2"))


def source_name(source: Path) -> str:
    """Return a file's name and size, to name what is derived from it. Raise InputError if there is no such file."""
    if not source.is_file():
        raise InputError(f"{source}: no such file; check the path")
    return f"{source.name.partition('.')[0]}-{source.stat().st_size}"


def repeat_dump(source: Path, target: Path, megabytes: float) -> Path:
    """Write at least `megabytes` of XML to `target` (.xml, or .xml.bz2 of many streams) and return `target`.

    Each copy of a page has its own title and id, and its number in a last sentence, since an extraction may drop
    equal texts. Raise InputError if `source` contains no pages.
    """
    if target.exists():
        return target
    head, pages = _read_pages(source)
    temporary = target.with_name(f"{target.name}.{os.getpid()}.tmp")
    with open(temporary, "wb") as stream:
        for part in _repeated_streams(head, pages, int(megabytes * 1e6)):
            data = part.encode()
            stream.write(bz2.compress(data) if target.suffix == ".bz2" else data)
    os.replace(temporary, target)
    return target


def _read_pages(source: Path) -> tuple[str, list[str]]:
    with open_bytes(source) as stream:
        raw = stream.read()
    text = raw.decode("utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8")
    pages = _PAGE.findall(text)
    if not pages:
        raise InputError(f"{source}: no <page> found; give a MediaWiki export")
    return text[: text.index("  <page>")], pages


def _repeated_streams(head: str, pages: list[str], size: int) -> Iterator[str]:
    yield head
    written, copy = len(head.encode()), 0
    buffer = io.StringIO()
    while written < size:
        for index, page in enumerate(pages):
            number = copy * len(pages) + index + 1
            text = _copy_of_page(page, copy, number) if copy else page
            buffer.write(text)
            written += len(text.encode())
            if number % PAGES_PER_STREAM == 0:
                yield buffer.getvalue()
                buffer = io.StringIO()
            if written >= size:
                break
        copy += 1
    yield buffer.getvalue() + "</mediawiki>\n"


def _copy_of_page(page: str, copy: int, number: int) -> str:
    page = _TITLE.sub(lambda match: f"{match[1]}{match[2]} {copy + 1}{match[3]}", page, count=1)
    page = _FIRST_ID.sub(lambda match: f"{match[1]}{10_000_000 + number}{match[3]}", page, count=1)
    if "<redirect " in page:
        return page
    return page.replace("</text>", f"\n\nThis is copy number {copy + 1} of the article.\n</text>", 1)


# ----------------------------------------------------------------------------------------------------------------------
# Corpora


def documents_of(corpus: Manifest, split: str) -> Iterator[Document]:
    """Yield the documents of a split."""
    for shard in corpus.file_paths("documents-"):
        yield from (document for document in read_documents(shard) if document.split == split)


def text_bytes(manifest: Manifest) -> int:
    """Return the size of a corpus' sentences in UTF-8."""
    return sum(
        _text_bytes(pq.read_table(path, columns=["sentences"], page_checksum_verification=True))
        for path in manifest.file_paths("documents-")
    )


def repeat_corpus(source: Manifest, target: Path, megabytes: float, *, shard_megabytes: float = 64.0) -> Manifest:
    """Publish a corpus of at least `megabytes` of text, in equal shards of about `shard_megabytes`.

    Copies of a document differ in id and title; `configuration["copies"]` is the number of copies.
    """
    if (target / "manifest.json").is_file():
        return load_manifest(target, kind="corpus")
    table = pa.concat_tables(
        [pq.read_table(path, page_checksum_verification=True) for path in source.file_paths("documents-")]
    )
    num_shards = max(1, round(megabytes / shard_megabytes))
    per_shard = max(1, math.ceil(megabytes * 1e6 / _text_bytes(table) / num_shards))
    copies = per_shard * num_shards
    configuration = {"copies": copies, "per_shard": per_shard}
    with publishing(target, kind="corpus", configuration=configuration, inputs={"corpus": input_of(source)}) as draft:
        for index, first in enumerate(range(0, copies, per_shard)):
            name = f"documents-{index:05d}.parquet"
            with pq.ParquetWriter(
                draft.path / name, DOCUMENT_SCHEMA, compression="zstd", write_page_checksum=True
            ) as writer:
                for copy in range(first, min(first + per_shard, copies)):
                    writer.write_table(_copy_of_documents(table, copy), row_group_size=DOCUMENTS_PER_ROW_GROUP)
                    draft.rows[name] = draft.rows.get(name, 0) + table.num_rows
    return load_manifest(target, kind="corpus")


def cut_corpus(source: Manifest, target: Path, num_documents: int) -> Manifest:
    """Publish the first documents of a corpus."""
    if (target / "manifest.json").is_file():
        return load_manifest(target, kind="corpus")
    table = pq.read_table(source.file_paths("documents-")[0], page_checksum_verification=True).slice(0, num_documents)
    configuration = {"documents": num_documents}
    with publishing(target, kind="corpus", configuration=configuration, inputs={"corpus": input_of(source)}) as draft:
        pq.write_table(table, draft.path / "documents-00000.parquet", compression="zstd", write_page_checksum=True)
        draft.rows["documents-00000.parquet"] = table.num_rows
    return load_manifest(target, kind="corpus")


def _text_bytes(table: pa.Table) -> int:
    return pc.sum(pc.binary_length(pc.list_flatten(table.column("sentences")))).as_py() or 0


def _copy_of_documents(table: pa.Table, copy: int) -> pa.Table:
    if not copy:
        return table
    for name in ("document_id", "title"):
        at = table.schema.get_field_index(name)
        changed = pc.binary_join_element_wise(table.column(name), str(copy + 1), "-")
        table = table.set_column(at, table.schema.field(name), changed)
    return table


# ----------------------------------------------------------------------------------------------------------------------
# Instances


def sample_instances(directory: Path, *, vocab_size: int, max_seq_length: int, num_articles: int = 1200) -> Manifest:
    """Return instances of the generated encyclopedia with dynamic masks.

    Made without Beam, for machines that have the libraries of the training only.
    """
    target = directory / f"sample-{num_articles}-{vocab_size}-{max_seq_length}"
    if (target / "manifest.json").is_file():
        return load_manifest(target, kind="instances")
    documents = _sample_documents(num_articles)
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
        for split, part in parts.items():
            (draft.path / split).mkdir()
            name = f"{split}/instances-00000.parquet"
            draft.rows[name] = _write_instances(draft.path / name, part, tokenizer, config)
            draft.footer_sha256[name] = footer_sha256(draft.path / name)
    return load_manifest(target, kind="instances")


def _sample_documents(num_articles: int) -> list[list[str]]:
    articles = [
        [plain(text) for section in article.sections for paragraph in section.paragraphs for text in paragraph]
        for article in write_articles(World(1, num_articles))
    ]
    starts = range(0, len(articles), ARTICLES_PER_DOCUMENT)
    return [[text for article in articles[s : s + ARTICLES_PER_DOCUMENT] for text in article] for s in starts]


def _write_instances(
    path: Path, documents: Sequence[Sequence[str]], tokenizer: Tokenizer, config: InstancesConfig
) -> int:
    tokens, lengths = SentenceEncoder(tokenizer).encode(pa.array([text for document in documents for text in document]))
    tokenized = TokenizedDocuments(
        tokens=tokens,
        sentence_offsets=offsets_of(lengths),
        document_offsets=offsets_of(np.array([len(document) for document in documents])),
        keys=np.array([key_of_text(f"sample:{index}") for index in range(len(documents))], dtype=np.uint64),
    )
    return write_instances(InstanceWriter(path), tokenized, tokenizer, config)


def write_instances(
    opened: InstanceWriter | TfrecordWriter,
    documents: TokenizedDocuments,
    tokenizer: Tokenizer,
    config: InstancesConfig,
) -> int:
    """Write the instances of some documents to one file; return their number."""
    pairs = make_pairs(documents, config)
    with opened as writer:
        for start in range(0, len(pairs), INSTANCES_PER_ROW_GROUP):
            part = pairs.take(slice(start, start + INSTANCES_PER_ROW_GROUP))
            writer.write(make_instances(documents, part, tokenizer, config, collections.Counter()))
        return writer.rows
