"""Tokenization: WordPiece equal to google's BERT code, and what any tokenizer.json describes.

Differences from the library's defaults: a word of WordPiece may have 200 characters before it becomes [UNK] (the
library: 100), and "[MASK]" or "[SEP]" in a text is plain text.
"""

import dataclasses
import functools
import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_pipeline.atomic import replace_text
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.manifest import files_of
from bert_pipeline.storage import is_remote, to_path
from bert_pipeline.vocabulary.files import (
    CONFIGURATION_NAME,
    CONTINUATION_PREFIX,
    FAST_NAME,
    NO_FLAGS,
    ROLES,
    UNK,
    VOCABULARY_NAME,
    Stated,
    check_tokens,
    read_stated,
)

MAX_INPUT_CHARS_PER_WORD = 200  # google-research/bert, tokenization.py

WORDS = pre_tokenizers.BertPreTokenizer()
"""BERT's splitter, at white space and around every punctuation character."""
WORDS_WITH_BLANKS = pre_tokenizers.ByteLevel(add_prefix_space=False)
"""GPT-2's, which leaves the blank in front of a word."""

CONTINUES = 1 << 30
"""Added to an id that continues a word, where the id alone does not tell (`Tokenizer.is_continuation`)."""


class Tokenizer:
    """BERT's own WordPiece, whose tokens are the lines of a vocab.txt, or what another tokenizer.json describes."""

    def __init__(self, stated: Stated) -> None:
        """InputError if the library refuses the tokenizer.json."""
        self._stated = stated
        self.tokens, self.names, self.vocab_size = stated.tokens, stated.names, len(stated.tokens)
        self.is_bert = stated.pipeline is None
        self.vocabulary_name = VOCABULARY_NAME if self.is_bert else FAST_NAME
        self._pipeline = stated.pipeline or json.loads(_wordpiece(stated.tokens, stated.do_lower_case))
        self._ids = {token: index for index, token in enumerate(self.tokens)}
        self.added = sorted(stated.added, key=lambda entry: self._ids[entry["content"]])
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (self._ids[name] for name in self.names)
        # Special tokens are plain text to our reader, and added ones are not; so no added one is special.
        document = self._document()
        own = [{**entry, "special": entry["content"] in self.names} for entry in document["added_tokens"]]
        try:
            self._engine = tokenizers.Tokenizer.from_str(json.dumps({**document, "added_tokens": own}))
        except Exception as error:  # the library raises no class of its own
            raise InputError(f"{stated.where}: cannot be read by the tokenizers library ({error})") from error
        self._engine.encode_special_tokens = True
        step = self._engine.normalizer
        self.do_lower_case = step is not None and step.normalize_str("A") == "a"

    @classmethod
    def from_tokens(cls, tokens: Sequence[str], do_lower_case: bool, where: str = "vocabulary") -> "Tokenizer":
        """Return the WordPiece of a list of tokens, in the order of their ids.

        InputError names `where` if a special token is missing or a token is repeated.
        """
        check_tokens(tokens, where)
        return cls(Stated(tokens=tuple(tokens), where=where, do_lower_case=do_lower_case))

    @classmethod
    def from_directory(cls, path: Path | str, *, cased: bool | None = None) -> "Tokenizer":
        """Load vocab.txt or tokenizer.json, and the files beside it, of `bert vocab` or of Hugging Face.

        `cased` is the case where no file states it. InputError if files are missing or damaged; UsageError if the case
        is not known, or for words that other programs split.
        """
        if not is_remote(path) and Path(path).is_file():
            is_named = Path(path).name in (VOCABULARY_NAME, FAST_NAME)
            remedy = f"give {Path(path).parent}" if is_named else f"copy it as {VOCABULARY_NAME} into one"
            raise InputError(f"{path}: is a file, expected a directory; {remedy}")
        directory = files_of(path)
        stated = read_stated(directory, cased)
        if not stated.tokens:
            raise InputError(f"{directory}: no {VOCABULARY_NAME}; give the directory of a vocabulary or of a model")
        if stated.refusal:
            raise UsageError(stated.refusal)
        return cls(stated)

    def check_case(self, cased: bool | None, where: Path | str) -> None:
        """Raise UsageError if the files that it was loaded from state another case than `cased`."""
        if self.do_lower_case == cased:
            raise UsageError(f"{where}: its files state the other case; leave out --cased and --no-cased")

    @functools.cached_property
    def sha256(self) -> str:
        """Hash of all that decides the ids: equal hashes mean equal tokenization."""
        if self.is_bert:
            lines = "".join(f"{token}\n" for token in self.tokens)
            added = "".join(json.dumps(entry, sort_keys=True) for entry in self.added)
            content = f"{lines}do_lower_case={self.do_lower_case}{added}"
        else:
            document = json.loads(self._engine.to_str())
            del document["decoder"]
            content = json.dumps([document, self.names], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def __str__(self) -> str:
        """Identify the vocabulary in messages: size, case and hash."""
        case = "lower-casing" if self.do_lower_case else "cased"
        return f"{self.vocab_size} tokens, {case} ({self.sha256[:12]}…)"

    @property
    def is_word_based(self) -> bool:
        """Whether a text is tokenized as its strings between spaces are."""
        return self.is_bert and not any(" " in entry["content"] for entry in self.added)

    @functools.cached_property
    def is_continuation(self) -> np.ndarray | None:
        """(V,) bool: the token continues a word ("##ing"). None if that depends on the text."""
        if not self.is_bert:
            return None
        return np.array([token.startswith(CONTINUATION_PREFIX) for token in self.tokens], dtype=bool)

    def with_special_tokens(self, contents: Sequence[str]) -> "Tokenizer":
        """Return a tokenizer that also cuts out these tokens; they take the first [unused] entries, or follow the last.

        UsageError if one is in the vocabulary already, or has a blank.
        """
        if not contents:
            return self
        for number, content in enumerate(contents):
            if content in self._ids or content in contents[:number] or content.split() != [content]:
                raise UsageError(f"special token {content!r}: expected a new one without blanks")
        tokens = fill_unused(self.tokens, contents)
        added = [*self.added, *({"content": content, **NO_FLAGS, "special": True} for content in contents)]
        kept = tuple(entry for entry in added if entry["content"] in tokens)
        return Tokenizer(dataclasses.replace(self._stated, tokens=tokens, added=kept))

    def token_to_id(self, token: str) -> int | None:
        """Return the id of a vocabulary entry, None if there is no such entry."""
        return self._ids.get(token)

    def encode(self, text: str) -> list[int]:
        """Tokenize a text; no special tokens are added."""
        return self._engine.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize many texts, in parallel unless TOKENIZERS_PARALLELISM is "false"."""
        return [encoding.ids for encoding in self._engine.encode_batch_fast(list(texts), add_special_tokens=False)]

    def encode_batch_with_offsets(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int]]]]:
        """Tokenize many texts; return the ids of each, and the (start, end) characters that each token covers.

        Blanks in front of other characters are left out.
        """
        encodings = self._engine.encode_batch(list(texts), add_special_tokens=False)
        return [
            (own.ids, [(end - len(text[start:end].lstrip() or text[start:end]), end) for start, end in own.offsets])
            for text, own in zip(texts, encodings)
        ]

    def encode_batch_with_words(self, texts: Sequence[str]) -> list[list[int]]:
        """Tokenize many texts; `CONTINUES` is added to the ids of tokens that continue the word before them."""
        rows = []
        for encoding in self._engine.encode_batch(list(texts), add_special_tokens=False):
            words = encoding.word_ids
            # Without a splitter the library sees one word; then a blank in a token tells them apart.
            same = [index > 0 and words[index - 1] == word is not None for index, word in enumerate(words)]
            rows.append([i + CONTINUES * (own and not self.surfaces[i][1]) for own, i in zip(same, encoding.ids)])
        return rows

    def encode_words(self, words: Sequence[str], *, follows: bool = False) -> list[list[int]]:
        """Tokenize a sentence; returns the ids of each of its words.

        Every word has at least one piece: [UNK] if nothing is left of it after normalization. With `follows` other
        text is before the sentence, which WordPiece does not care for.
        """
        if not words:
            return []
        text = " " * follows + " ".join(words)
        ends = np.cumsum([len(word) + 1 for word in words]) - (not follows)
        encoding = self._engine.encode(text, add_special_tokens=False)
        pieces: list[list[int]] = [[] for _ in words]
        # A token belongs to the word of its last character, and one of a blank to the word after it.
        last = [max(start, end - 1) for start, end in encoding.offsets]
        for index, word in zip(encoding.ids, np.searchsorted(ends, last, side="right").tolist()):
            pieces[min(word, len(words) - 1)].append(index)
        return [own or [self.unk_id] for own in pieces]

    def encode_word(self, word: str) -> list[int]:
        """Spell a word by the model alone, without normalization; [] if it cannot be spelled."""
        ids = [token.id for token in self._engine.model.tokenize(word)]
        return [] if self.unk_id in ids else ids

    @functools.cached_property
    def surfaces(self) -> list[tuple[str, bool]]:
        """The text of each token, and whether a word begins with it."""
        model = self._pipeline["model"]
        if model["type"] == "WordPiece":
            prefix = model.get("continuing_subword_prefix", CONTINUATION_PREFIX)
            return [(token.removeprefix(prefix), not token.startswith(prefix)) for token in self.tokens]
        if "ByteLevel" in json.dumps(self._pipeline.get("decoder")):
            texts = [decoders.ByteLevel().decode([token]) for token in self.tokens]
        else:
            texts = [token.replace("▁", " ") for token in self.tokens]
        return [(text.removeprefix(" "), text.startswith(" ")) for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        """Join tokens to text."""
        return str(self._engine.decode(list(ids), skip_special_tokens=False))

    def save(self, directory: Path | str, *, model_max_length: int | None = None) -> None:
        """Write the files that transformers opens: tokenizer_config.json, and vocab.txt of WordPiece.

        `model_max_length` is the number of tokens at which transformers truncates for the model in the directory, which
        has a tokenizer.json of WordPiece too; without it, as in a directory of a vocabulary alone, transformers
        truncates nothing.
        """
        directory = to_path(directory)
        # transformers leaves out the segments of a pair unless they are named.
        inputs = ["input_ids", "token_type_ids", "attention_mask"]
        configuration: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": inputs}
        if self.is_bert:
            replace_text(directory / VOCABULARY_NAME, "".join(f"{token}\n" for token in self.tokens))
            # `strip_accents` of None follows `do_lower_case`, as in google's code.
            settings = {"do_lower_case": self.do_lower_case, "strip_accents": None, "tokenize_chinese_chars": True}
            configuration = {"tokenizer_class": "BertTokenizer", **settings}
        configuration |= dict(zip(ROLES, self.names))
        if self.added:
            special = [entry["content"] for entry in self.added if entry["special"]]
            decoder = {str(self._ids[entry["content"]]): entry for entry in self.added}
            configuration |= {"additional_special_tokens": special, "added_tokens_decoder": decoder}
        if model_max_length:
            configuration["model_max_length"] = model_max_length
        replace_text(directory / CONFIGURATION_NAME, json.dumps(configuration, indent=1) + "\n")
        if model_max_length or not self.is_bert:
            replace_text(directory / FAST_NAME, self.to_json())

    def to_json(self) -> str:
        """Return a tokenizer.json, which all readers of the tokenizers library open: [CLS] A [SEP] B [SEP].

        They read "[MASK]" in a text as the special token; only here it is plain text. It truncates and pads nothing.
        """
        engine = tokenizers.Tokenizer.from_str(json.dumps(self._document()))
        cls, sep = self.names[2:4]
        engine.post_processor = processors.TemplateProcessing(
            single=[cls, "$A", sep],
            pair=[cls, "$A", sep, "$B:1", f"{sep}:1"],
            special_tokens=[(cls, self.cls_id), (sep, self.sep_id)],
        )
        return engine.to_str(pretty=True) + "\n"

    def _document(self) -> dict[str, Any]:
        """Return a tokenizer.json without what its author's training set: truncation, padding, random merges."""
        model = {**self._pipeline["model"]}
        if isinstance(model["vocab"], dict):  # a Unigram has no [unused] entries, which special tokens take
            model["vocab"] = {self.tokens[index]: index for index in model["vocab"].values()}
        if "dropout" in model:
            model["dropout"] = None
        stated = {entry["content"]: entry for entry in self._pipeline.get("added_tokens") or ()}
        special = [{**NO_FLAGS, **stated.get(name, {}), "content": name, "special": True} for name in self.names]
        entries = [{**entry, "id": self._ids[entry["content"]]} for entry in (*special, *self.added)]
        own = {"model": model, "added_tokens": sorted(entries, key=lambda entry: entry["id"])}
        return {**self._pipeline, **own, "truncation": None, "padding": None, "post_processor": None}

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._stated,)


def fill_unused(tokens: Sequence[str], entries: Sequence[str]) -> tuple[str, ...]:
    """Return a vocabulary with entries in place of its first [unused] ones; what is left of them follows the last."""
    left = iter(entries)
    filled = [next(left, token) if re.fullmatch(r"\[unused\d+\]", token) else token for token in tokens]
    return (*filled, *left)


def normalizer(do_lower_case: bool, kind: str = "wordpiece") -> normalizers.Normalizer:
    """Return BERT's text normalization: control characters, CJK spacing, and for uncased models case and accents.

    Of `kind` bpe it has no CJK spacing, and composes the characters of cased models instead.
    """
    if kind == "bpe" and not do_lower_case:
        return normalizers.NFC()
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=kind != "bpe", strip_accents=None, lowercase=do_lower_case
    )


def _wordpiece(tokens: Sequence[str], do_lower_case: bool) -> str:
    """Return the tokenizer.json of BERT's own code."""
    ids = {token: index for index, token in enumerate(tokens)}
    model = models.WordPiece(ids, unk_token=UNK, max_input_chars_per_word=MAX_INPUT_CHARS_PER_WORD)
    engine = tokenizers.Tokenizer(model)
    engine.normalizer, engine.pre_tokenizer = normalizer(do_lower_case), WORDS
    engine.decoder = decoders.WordPiece(prefix=CONTINUATION_PREFIX)
    return engine.to_str()
