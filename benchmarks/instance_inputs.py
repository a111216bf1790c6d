"""What the instance benchmark works on: a corpus of any size, made of the articles of a few dumps, and a vocabulary."""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.repeated_corpus import cut_corpus, repeat_corpus, text_bytes
from benchmarks.repeated_dump import sample_dump, source_name
from benchmarks.working_directory import working_directory
from bert_pipeline.corpus.build import CorpusConfig
from bert_pipeline.corpus.job import build_corpus
from bert_pipeline.manifest import Manifest, load_manifest
from bert_pipeline.vocabulary.job import build_vocabulary
from bert_pipeline.vocabulary.tokenizer import Tokenizer
from bert_pipeline.vocabulary.wordpiece import VocabularyConfig

_FEW_DOCUMENTS = 4
_PART_MEGABYTES = 8.0


@dataclasses.dataclass(frozen=True, kw_only=True)
class InstanceInputs:
    """Inputs of one run; what an earlier run made is taken as it is."""

    name: str
    """The sources, for names of files."""
    directory: Path
    one_copy: Manifest
    """The corpus of the dumps, once."""
    vocabulary: Path
    megabytes: float
    """Text in the corpus of the jobs."""

    @classmethod
    def make(cls, dumps: Sequence[Path], vocabulary: Path | None, megabytes: float) -> "InstanceInputs":
        """Extract the dumps (the generated encyclopaedia where there are none) and make what is missing."""
        directory = working_directory("instances")
        sources = list(dumps) or [sample_dump(directory)]
        name = "+".join(map(source_name, sources))
        one_copy = _existing_or(
            directory / f"{name}-corpus",
            lambda path: build_corpus([str(source) for source in sources], path, CorpusConfig(), ["--workers", "1"]),
        )
        if vocabulary is None:
            vocabulary = directory / f"{name}-vocabulary"
            config = VocabularyConfig(vocab_size=8_000, pad_with_unused=True)
            _existing_or(vocabulary, lambda path: build_vocabulary(one_copy.path, path, config, ["--workers", "1"]))
        return cls(name=name, directory=directory, one_copy=one_copy, vocabulary=vocabulary, megabytes=megabytes)

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        return Tokenizer.from_directory(self.vocabulary)

    @functools.cached_property
    def one_copy_bytes(self) -> int:
        """Text of one copy, in bytes."""
        return text_bytes(self.one_copy)

    @functools.cached_property
    def part(self) -> Manifest:
        """One shard, small enough to measure parts in seconds."""
        return self.repeated(min(_PART_MEGABYTES, self.megabytes))

    @functools.cached_property
    def corpus(self) -> Manifest:
        """The corpus of the jobs, in shards of the size that a corpus has at least."""
        return self.repeated(self.megabytes)

    @functools.cached_property
    def few(self) -> Manifest:
        """Next to nothing, to see what a job costs before it works."""
        return cut_corpus(self.one_copy, self.directory / f"{self.name}-few", _FEW_DOCUMENTS)

    def repeated(self, megabytes: float) -> Manifest:
        """A corpus of at least so much text."""
        return repeat_corpus(self.one_copy, self.directory / f"{self.name}-{megabytes:g}mb", megabytes)

    def megabytes_of(self, corpus: Manifest) -> float:
        """Text of a repeated corpus."""
        return float(self.one_copy_bytes * corpus.configuration["copies"] / 1e6)


def _existing_or(path: Path, make: Callable[[Path], Manifest]) -> Manifest:
    return load_manifest(path) if (path / "manifest.json").is_file() else make(path)
