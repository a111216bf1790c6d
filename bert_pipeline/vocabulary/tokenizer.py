"""Tokenization: WordPiece equal to google's BERT code, and what any tokenizer.json describes.

Differences from the library's defaults: a word of WordPiece may have 200 characters before it becomes [UNK] (the
library: 100), and "[MASK]" or "[SEP]" in a text is plain text.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_pipeline.atomic import atomic_write, replace_text
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.manifest import files_of
from bert_pipeline.storage import is_remote, to_path
from bert_pipeline.vocabulary.files import (
    CONFIGURATION_NAME,
    CONTINUATION_PREFIX,
    FAST_NAME,
    SPECIAL_TOKENS,
    UNK,
    VOCABULARY_NAME,
    check_tokens,
    read_stated,
)

MAX_INPUT_CHARS_PER_WORD = 200  # google-research/bert, tokenization.py


@dataclasses.dataclass(frozen=True, slots=True)
class Encoded:
    """One text as token ids with each token's (start, end) characters in the original text."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class Tokenizer:
    """A WordPiece vocabulary with BERT's tokenization; a token's id is its line in vocab.txt, from 0."""

    vocabulary_name = VOCABULARY_NAME
    """The file with its tokens."""
    names: tuple[str, ...] = SPECIAL_TOKENS
    """What the vocabulary calls [PAD], [UNK], [CLS], [SEP] and [MASK]."""

    def __init__(
        self,
        tokens: Sequence[str],
        do_lower_case: bool,
        where: str = "vocabulary",
        added: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        """InputError names `where` if a special token is missing or a token is repeated.

        `added` are tokens of the vocabulary that are cut out of a text (`Stated.added`).
        """
        self.tokens = tuple(tokens)
        self.do_lower_case = do_lower_case
        self.added = tuple(added)
        self._ids = check_tokens(self.tokens, where)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (self._ids[t] for t in SPECIAL_TOKENS)
        self._engine = _engine(self._ids, do_lower_case)
        # Not as special ones, which stay plain text; their matching is the same.
        self._engine.add_tokens([tokenizers.AddedToken(**{**entry, "special": False}) for entry in self.added])

    @classmethod
    def from_tokens(cls, tokens: Sequence[str], do_lower_case: bool) -> "Tokenizer":
        """Return the tokenizer of a list of tokens, in the order of their ids."""
        return cls(tokens, do_lower_case)

    @classmethod
    def from_directory(cls, path: Path | str) -> "Tokenizer":
        """Load vocab.txt or tokenizer.json, and the files beside it, of `bert vocab` or of Hugging Face.

        InputError if files are missing or damaged; UsageError if no file states whether text is lower-cased, or for
        words that other programs split.
        """
        if not is_remote(path) and Path(path).is_file():
            raise InputError(f"{path}: is a file, expected a directory; give {Path(path).parent}")
        directory = files_of(path)
        stated = read_stated(directory)
        if not stated.tokens:
            raise InputError(f"{directory}: no {VOCABULARY_NAME}; give the directory of a vocabulary or of a model")
        if stated.refusal:
            raise UsageError(stated.refusal)
        if stated.pipeline is not None:
            return JsonTokenizer(stated.pipeline, stated.tokens, stated.names, stated.added, stated.where)
        return cls(stated.tokens, stated.do_lower_case, stated.where, stated.added)

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    @functools.cached_property
    def sha256(self) -> str:
        """Hash of the vocabulary and its case: equal hashes mean equal tokenization."""
        digest = hashlib.sha256("".join(f"{token}\n" for token in self.tokens).encode())
        digest.update(f"do_lower_case={self.do_lower_case}".encode())
        digest.update("".join(json.dumps(entry, sort_keys=True) for entry in self.added).encode())
        return digest.hexdigest()

    def __str__(self) -> str:
        """Identify the vocabulary in messages: size, case and hash."""
        case = "lower-casing" if self.do_lower_case else "cased"
        return f"{self.vocab_size} tokens, {case} ({self.sha256[:12]}…)"

    @property
    def is_word_based(self) -> bool:
        """Whether a text is tokenized as its strings between spaces are."""
        return not any(" " in entry["content"] for entry in self.added)

    @functools.cached_property
    def is_continuation(self) -> np.ndarray | None:
        """(V,) bool: the token continues a word ("##ing"). None if that depends on the text."""
        return np.array([token.startswith(CONTINUATION_PREFIX) for token in self.tokens], dtype=bool)

    def with_special_tokens(self, contents: Sequence[str]) -> "Tokenizer":
        """Return a tokenizer that also cuts out these tokens; they take the first [unused] entries, or follow the last.

        UsageError if one is in the vocabulary already, or has a blank.
        """
        if not contents:
            return self
        tokens = list(self.tokens)
        slots = [index for index, token in enumerate(tokens) if re.fullmatch(r"\[unused\d+\]", token)]
        for content in contents:
            if content in tokens or not content or content.split() != [content]:
                raise UsageError(f"special token {content!r}: expected a new one without blanks")
            if slots:
                tokens[slots.pop(0)] = content
            else:
                tokens.append(content)
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False) | {"special": True}
        added = [*self.added, *({"content": content, **flags} for content in contents)]
        kept = [entry for entry in added if entry["content"] in tokens]
        return self._with(tokens, sorted(kept, key=lambda entry: tokens.index(entry["content"])))

    def _with(self, tokens: Sequence[str], added: Sequence[Mapping[str, Any]]) -> "Tokenizer":
        return Tokenizer(tokens, self.do_lower_case, added=added)

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a vocabulary entry, None if there is no such entry."""
        return self._ids.get(token)

    def encode(self, text: str) -> list[int]:
        """Tokenize a text; no special tokens are added."""
        return self._engine.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize many texts, in parallel unless TOKENIZERS_PARALLELISM is "false"."""
        return [encoding.ids for encoding in self._engine.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_batch_with_offsets(self, texts: Sequence[str]) -> list[Encoded]:
        """Tokenize many texts, with the characters that each token covers."""
        encodings = self._engine.encode_batch(list(texts), add_special_tokens=False)
        return [Encoded(encoding.ids, encoding.offsets) for encoding in encodings]

    def encode_batch_with_words(self, texts: Sequence[str]) -> list[tuple[list[int], list[bool]]]:
        """Tokenize many texts; returns of each the ids, and whether a token continues the word before it."""
        assert self.is_continuation is not None
        return [(ids, self.is_continuation[ids].tolist()) for ids in self.encode_batch(texts)]

    def encode_words(self, words: Sequence[str], *, follows: bool = False) -> tuple[list[int], list[int]]:
        """Tokenize the words of a sentence; returns the ids, and for each id the index of its word.

        Every word has at least one piece: [UNK] if nothing is left of it after normalization. With `follows` other
        text is before the sentence, which WordPiece does not care for.
        """
        return self._with_unknown(self.encode_batch(words))

    def _with_unknown(self, pieces: Sequence[list[int]]) -> tuple[list[int], list[int]]:
        whole = [own or [self.unk_id] for own in pieces]
        return [index for own in whole for index in own], [word for word, own in enumerate(whole) for _ in own]

    def surface(self, index: int) -> tuple[str, bool]:
        """Return the text of a token, and whether a word begins with it."""
        token = self.tokens[index]
        return token.removeprefix(CONTINUATION_PREFIX), not token.startswith(CONTINUATION_PREFIX)

    def decode(self, ids: Sequence[int]) -> str:
        """Join tokens to text: pieces are appended to their word, words are separated by a space."""
        return " ".join(self.tokens[index] for index in ids).replace(f" {CONTINUATION_PREFIX}", "")

    def save(self, directory: Path | str, *, model_max_length: int | None = None) -> None:
        """Write vocab.txt and tokenizer_config.json in the format of Hugging Face's BertTokenizer.

        `model_max_length` is the number of tokens at which transformers truncates for the model in the directory, which
        gets a tokenizer.json too; without it, as in a directory of a vocabulary alone, transformers truncates nothing.
        """
        directory = to_path(directory)
        with (
            atomic_write(directory / VOCABULARY_NAME) as temporary,
            open(temporary, "w", encoding="utf-8", newline="\n") as stream,
        ):
            stream.writelines(f"{token}\n" for token in self.tokens)
        # `strip_accents` of None follows `do_lower_case`, as in google's code.
        settings = {"do_lower_case": self.do_lower_case, "strip_accents": None, "tokenize_chinese_chars": True}
        self._save_configuration(directory, {"tokenizer_class": "BertTokenizer", **settings}, model_max_length)
        if model_max_length:
            replace_text(directory / FAST_NAME, self.to_json())

    def _save_configuration(self, directory: Path, settings: dict[str, Any], model_max_length: int | None) -> None:
        configuration = settings | {
            f"{usual.strip('[]').lower()}_token": name for usual, name in zip(SPECIAL_TOKENS, self.names)
        }
        if self.added:
            special = [entry["content"] for entry in self.added if entry["special"]]
            decoder = {str(self._ids[entry["content"]]): entry for entry in self.added}
            configuration |= {"additional_special_tokens": special, "added_tokens_decoder": decoder}
        if model_max_length:
            configuration["model_max_length"] = model_max_length
        replace_text(directory / CONFIGURATION_NAME, json.dumps(configuration, indent=1) + "\n")

    def to_json(self) -> str:
        """Return a tokenizer.json, which all readers of the tokenizers library open: [CLS] A [SEP] B [SEP].

        They read "[MASK]" in a text as the special token; only here it is plain text. It truncates and pads nothing.
        """
        engine = _engine(self._ids, self.do_lower_case)
        engine.decoder = decoders.WordPiece(prefix=CONTINUATION_PREFIX)
        engine.add_special_tokens(list(self.names))
        for entry in self.added:
            add = engine.add_special_tokens if entry["special"] else engine.add_tokens
            add([tokenizers.AddedToken(**entry)])
        return self._with_processor(engine)

    def _with_processor(self, engine: tokenizers.Tokenizer) -> str:
        cls, sep = self.names[2:4]
        engine.post_processor = processors.TemplateProcessing(
            single=[cls, "$A", sep],
            pair=[cls, "$A", sep, "$B:1", f"{sep}:1"],
            special_tokens=[(cls, self.cls_id), (sep, self.sep_id)],
        )
        return engine.to_str(pretty=True) + "\n"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.tokens, self.do_lower_case, "vocabulary", self.added)


class JsonTokenizer(Tokenizer):
    """Any other tokenizer, as a tokenizer.json describes it: it reads whole sentences, and blanks count."""

    vocabulary_name = FAST_NAME
    is_word_based = False
    is_continuation = None

    def __init__(
        self,
        pipeline: Mapping[str, Any],
        tokens: Sequence[str],
        names: Sequence[str] = SPECIAL_TOKENS,
        added: Sequence[Mapping[str, Any]] = (),
        where: str = FAST_NAME,
    ) -> None:
        """`tokens`, `names` and `added` are those of `Stated`; InputError if the library refuses the file."""
        self.tokens, self.names, self.added = tuple(tokens), tuple(names), tuple(added)
        self._pipeline = pipeline
        self._ids = {token: index for index, token in enumerate(self.tokens)}
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (self._ids[name] for name in self.names)
        try:
            self._engine = self._read(only_names_are_special=True)
        except Exception as error:  # the library raises no class of its own
            raise InputError(f"{where}: cannot be read by the tokenizers library ({error})") from error
        self._engine.encode_special_tokens = True
        step = self._engine.normalizer
        self.do_lower_case = step is not None and step.normalize_str("A") == "a"

    def _read(self, *, only_names_are_special: bool) -> tokenizers.Tokenizer:
        """Return the library's tokenizer, without what its author's training set: truncation, padding, random merges.

        Special tokens are plain text where they are not cut out; so added ones are not special in our reader.
        """
        stated = self._pipeline.get("added_tokens") or ()
        entries = {entry["content"]: entry for entry in stated if entry["content"] in self._ids}
        entries |= {entry["content"]: {**entry, "id": self._ids[entry["content"]]} for entry in self.added}
        for name in self.names:
            flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
            entries[name] = {"id": self._ids[name], "content": name, **flags, **entries.get(name, {}), "special": True}
        own = [
            {**entry, "special": entry["content"] in self.names if only_names_are_special else entry["special"]}
            for entry in sorted(entries.values(), key=lambda entry: entry["id"])
        ]
        document = {**self._pipeline, "truncation": None, "padding": None, "post_processor": None, "added_tokens": own}
        if "dropout" in document["model"]:
            document["model"] = {**document["model"], "dropout": None}
        return tokenizers.Tokenizer.from_str(json.dumps(document))

    def _with(self, tokens: Sequence[str], added: Sequence[Mapping[str, Any]]) -> Tokenizer:
        model = self._pipeline["model"]
        vocabulary = model["vocab"]
        if isinstance(vocabulary, dict):  # a Unigram has no unused entries
            vocabulary = {tokens[index]: index for index in vocabulary.values()}
        return JsonTokenizer({**self._pipeline, "model": {**model, "vocab": vocabulary}}, tokens, self.names, added)

    @functools.cached_property
    def sha256(self) -> str:
        """Hash of all that decides the ids: model and merges, normalization, splitting, added tokens and names."""
        document = json.loads(self._engine.to_str())
        parts = {name: value for name, value in document.items() if name != "decoder"}
        return hashlib.sha256(json.dumps([parts, self.names], sort_keys=True).encode()).hexdigest()

    def encode_batch_with_words(self, texts: Sequence[str]) -> list[tuple[list[int], list[bool]]]:
        rows = []
        for encoding in self._engine.encode_batch(list(texts), add_special_tokens=False):
            words = encoding.word_ids
            # Without a splitter the library sees one word; then a blank in a token tells them apart.
            same = [index > 0 and words[index - 1] == word is not None for index, word in enumerate(words)]
            rows.append((encoding.ids, [own and not self.surface(i)[1] for own, i in zip(same, encoding.ids)]))
        return rows

    def encode_batch_with_offsets(self, texts: Sequence[str]) -> list[Encoded]:
        # A token's blanks in front are no part of an answer; a token of blanks alone keeps them.
        encoded = []
        for text, row in zip(texts, super().encode_batch_with_offsets(texts)):
            parts = [text[start:end] for start, end in row.offsets]
            blanks = [len(part) - len(part.lstrip()) if part.strip() else 0 for part in parts]
            offsets = [(start + blank, end) for (start, end), blank in zip(row.offsets, blanks)]
            encoded.append(Encoded(row.ids, offsets))
        return encoded

    def encode_words(self, words: Sequence[str], *, follows: bool = False) -> tuple[list[int], list[int]]:
        if not words:
            return [], []
        text = " " * follows + " ".join(words)
        ends = np.cumsum([len(word) + 1 for word in words]) - (not follows)
        encoding = self._engine.encode(text, add_special_tokens=False)
        pieces: list[list[int]] = [[] for _ in words]
        # A token belongs to the word of its last character, and one of a blank to the word after it.
        last = [max(start, end - 1) for start, end in encoding.offsets]
        for index, word in zip(encoding.ids, np.searchsorted(ends, last, side="right").tolist()):
            pieces[min(word, len(words) - 1)].append(index)
        return self._with_unknown(pieces)

    def surface(self, index: int) -> tuple[str, bool]:
        text = self._surfaces[index]
        return text.removeprefix(" "), text.startswith(" ")

    @functools.cached_property
    def _surfaces(self) -> list[str]:
        model = self._pipeline["model"]
        if model["type"] == "WordPiece":
            prefix = model.get("continuing_subword_prefix", CONTINUATION_PREFIX)
            return [token.removeprefix(prefix) if token.startswith(prefix) else f" {token}" for token in self.tokens]
        if "ByteLevel" in json.dumps(self._pipeline.get("decoder")):
            return [decoders.ByteLevel().decode([token]) for token in self.tokens]
        return [token.replace("▁", " ") for token in self.tokens]

    def decode(self, ids: Sequence[int]) -> str:
        return str(self._engine.decode(list(ids), skip_special_tokens=False))

    def save(self, directory: Path | str, *, model_max_length: int | None = None) -> None:
        """Write tokenizer.json and tokenizer_config.json; transformers opens them for every type of model."""
        directory = to_path(directory)
        self._save_configuration(directory, {"tokenizer_class": "PreTrainedTokenizerFast"}, model_max_length)
        replace_text(directory / FAST_NAME, self.to_json())

    def to_json(self) -> str:
        return self._with_processor(self._read(only_names_are_special=False))

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._pipeline, self.tokens, self.names, self.added)


def normalizer(do_lower_case: bool) -> normalizers.Normalizer:
    """Return BERT's text normalization: control characters, CJK spacing, and for uncased models case and accents."""
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=do_lower_case
    )


def byte_level_normalizer(do_lower_case: bool) -> normalizers.Normalizer:
    """Return the normalization in front of byte-level BPE: composed characters, or BERT's without CJK spacing."""
    if not do_lower_case:
        return normalizers.NFC()
    return normalizers.BertNormalizer(clean_text=True, handle_chinese_chars=False, strip_accents=None, lowercase=True)


def pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    """Return the splitter at white space and around every punctuation character."""
    return pre_tokenizers.BertPreTokenizer()


def _engine(ids: dict[str, int], do_lower_case: bool) -> tokenizers.Tokenizer:
    model = models.WordPiece(ids, unk_token=UNK, max_input_chars_per_word=MAX_INPUT_CHARS_PER_WORD)
    engine = tokenizers.Tokenizer(model)
    engine.normalizer = normalizer(do_lower_case)
    engine.pre_tokenizer = pre_tokenizer()
    engine.encode_special_tokens = True
    return engine
