"""WordPiece tokenization equal to google's BERT code, on top of the tokenizers library.

Differences from the library's defaults: a word may have 200 characters before it becomes [UNK] (the library: 100),
and "[MASK]" or "[SEP]" in a text is plain text.
"""

import array
import dataclasses
import functools
import hashlib
import io
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bert_pipeline.atomic import atomic_write, replace_text
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.manifest import files_of
from bert_pipeline.storage import is_remote, open_binary, reason_of, store_errors, to_path

VOCABULARY_NAME = "vocab.txt"
CONFIGURATION_NAME = "tokenizer_config.json"
FAST_NAME = "tokenizer.json"
SENTENCE_NAME = "sentence_bert_config.json"

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION_PREFIX = "##"
MAX_INPUT_CHARS_PER_WORD = 200  # google-research/bert, tokenization.py


@dataclasses.dataclass(frozen=True, slots=True)
class Encoded:
    """One text as token ids with each token's (start, end) characters in the original text."""

    ids: list[int]
    offsets: list[tuple[int, int]]


class Tokenizer:
    """A WordPiece vocabulary with BERT's tokenization; a token's id is its line in vocab.txt, from 0."""

    def __init__(self, tokens: Sequence[str], do_lower_case: bool, where: str = "vocabulary") -> None:
        """InputError names `where` if a special token is missing or a token is repeated."""
        self.tokens = tuple(tokens)
        self.do_lower_case = do_lower_case
        self._ids = check_tokens(self.tokens, where)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (self._ids[t] for t in SPECIAL_TOKENS)
        self._engine = _engine(self._ids, do_lower_case)

    @classmethod
    def from_tokens(cls, tokens: Sequence[str], do_lower_case: bool) -> "Tokenizer":
        """Return the tokenizer of a list of tokens, in the order of their ids."""
        return cls(tokens, do_lower_case)

    @classmethod
    def from_directory(cls, path: Path | str) -> "Tokenizer":
        """Load vocab.txt (or tokenizer.json) and tokenizer_config.json, of `bert vocab` or of Hugging Face.

        InputError if files are missing or damaged; UsageError if no file states whether text is lower-cased.
        """
        if not is_remote(path) and Path(path).is_file():
            raise InputError(f"{path}: is a file, expected a directory; give {Path(path).parent}")
        directory = files_of(path)
        configuration, fast = _read_json(directory / CONFIGURATION_NAME), _read_json(directory / FAST_NAME)
        tokens, where = _stated_tokens(directory, configuration, fast)
        if not tokens:
            raise InputError(f"{directory}: no {VOCABULARY_NAME}; give the directory of a vocabulary or of a model")

        # The case is never guessed: a wrong one gives other ids without any error. Some models on the hub state it in
        # tokenizer.json only, also beside a vocab.txt.
        do_lower_case, normalization = configuration.get("do_lower_case"), {}
        if do_lower_case is None:
            normalization = _normalization_of_fast(fast)
            do_lower_case = normalization.get("lowercase")
        if not isinstance(do_lower_case, bool):
            raise UsageError(
                f"{directory / CONFIGURATION_NAME}: do_lower_case is not stated there, nor lowercase in "
                'tokenizer.json; write {"do_lower_case": true} into it for an uncased vocabulary, false for a cased one'
            )
        _refuse_other_words(configuration, directory / CONFIGURATION_NAME)
        _refuse_other_normalization(configuration, do_lower_case, directory / CONFIGURATION_NAME)
        _refuse_other_normalization(normalization, do_lower_case, directory / FAST_NAME)
        if where == str(directory / FAST_NAME):
            _refuse_other_fast_settings(fast, do_lower_case, directory / FAST_NAME)
        _refuse_added_tokens(configuration, fast, directory)
        return cls(tokens, do_lower_case, where)

    @property
    def vocab_size(self) -> int:
        return len(self.tokens)

    @functools.cached_property
    def sha256(self) -> str:
        """Hash of the vocabulary and its case: equal hashes mean equal tokenization."""
        digest = hashlib.sha256("".join(f"{token}\n" for token in self.tokens).encode())
        digest.update(f"do_lower_case={self.do_lower_case}".encode())
        return digest.hexdigest()

    def __str__(self) -> str:
        """Identify the vocabulary in messages: size, case and hash."""
        case = "lower-casing" if self.do_lower_case else "cased"
        return f"{self.vocab_size} tokens, {case} ({self.sha256[:12]}…)"

    @functools.cached_property
    def is_continuation(self) -> np.ndarray:
        """(V,) bool: the token continues a word ("##ing")."""
        return np.array([token.startswith(CONTINUATION_PREFIX) for token in self.tokens], dtype=bool)

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

    def encode_words(self, words: Sequence[str]) -> tuple[list[int], list[int]]:
        """Tokenize words one by one; returns the ids, and for each id the index of its word.

        Every word has at least one piece: [UNK] if nothing is left of it after normalization.
        """
        ids: list[int] = []
        word_index: list[int] = []
        for index, pieces in enumerate(self.encode_batch(words)):
            pieces = pieces or [self.unk_id]
            ids += pieces
            word_index += [index] * len(pieces)
        return ids, word_index

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
        configuration = {
            "tokenizer_class": "BertTokenizer",
            "do_lower_case": self.do_lower_case,
            "strip_accents": None,
            "tokenize_chinese_chars": True,
            **{f"{name.strip('[]').lower()}_token": name for name in SPECIAL_TOKENS},
            **({"model_max_length": model_max_length} if model_max_length else {}),
        }
        text = json.dumps(configuration, indent=1) + "\n"
        replace_text(directory / CONFIGURATION_NAME, text)
        if model_max_length:
            replace_text(directory / FAST_NAME, self.to_json())

    def to_json(self) -> str:
        """Return a tokenizer.json, which all readers of the tokenizers library open: [CLS] A [SEP] B [SEP].

        They read "[MASK]" in a text as the special token; only here it is plain text. It truncates and pads nothing.
        """
        engine = _engine(self._ids, self.do_lower_case)
        engine.add_special_tokens(list(SPECIAL_TOKENS))
        engine.post_processor = processors.TemplateProcessing(
            single=f"{CLS} $A {SEP}",
            pair=f"{CLS} $A {SEP} $B:1 {SEP}:1",
            special_tokens=[(CLS, self.cls_id), (SEP, self.sep_id)],
        )
        engine.decoder = decoders.WordPiece(prefix=CONTINUATION_PREFIX)
        return engine.to_str(pretty=True) + "\n"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.tokens, self.do_lower_case)


def read_vocabulary(path: Path | str) -> tuple[str, ...]:
    """Read a vocab.txt, one token per line. Only "\\n" ends a line: some vocabularies have U+2028 as a token."""
    try:
        with store_errors(path), io.TextIOWrapper(open_binary(path), encoding="utf-8", newline="\n") as stream:
            return tuple(line.removesuffix("\n").removesuffix("\r") for line in stream)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({reason_of(error)})") from error


def read_tokens(directory: Path) -> tuple[str, ...]:
    """Return the tokens of a directory in the order of their ids; () if it has no vocabulary.

    InputError if its files contradict each other, or as `check_tokens`.
    """
    return _stated_tokens(directory, _read_json(directory / CONFIGURATION_NAME), _read_json(directory / FAST_NAME))[0]


def model_max_length(path: Path | str) -> int | None:
    """Return the number of tokens that a model's inputs are limited to; None if it has no limit.

    sentence-transformers has a file of its own for it, else tokenizer_config.json tells it.
    """
    length = _read_json(files_of(path) / SENTENCE_NAME).get("max_seq_length")
    length = length or _read_json(files_of(path) / CONFIGURATION_NAME).get("model_max_length")
    # transformers writes 1e30 for "no limit".
    return int(length) if isinstance(length, (int, float)) and 0 < length < 1e9 else None


def check_tokens(tokens: Sequence[str], where: str) -> dict[str, int]:
    """Return token -> id. InputError names the line of a repeated token, and missing special tokens."""
    ids: dict[str, int] = {}
    for index, token in enumerate(tokens):
        if token in ids:
            # Without the line, all later tokens would have other ids. BERT's own code takes the last of two lines.
            first, taken = ids[token] + 1, set(tokens)
            unused = next(name for name in map("[unused{}]".format, itertools.count()) if name not in taken)
            raise InputError(
                f"{where}:{index + 1}: {token!r} is on line {first} already; replace it by an unused entry such as "
                f"{unused} on line {first}, and remove no line: a token's id is its line"
            )
        ids[token] = index
    # A vocabulary of another model family has other special tokens, and would fail only later.
    missing = [token for token in SPECIAL_TOKENS if token not in ids]
    if missing:
        raise InputError(
            f"{where}: {len(ids)} tokens, but no {', '.join(missing)}; a BERT vocabulary has all of "
            f"{', '.join(SPECIAL_TOKENS)}"
        )
    return ids


def normalizer(do_lower_case: bool) -> normalizers.Normalizer:
    """Return BERT's text normalization: control characters, CJK spacing, and for uncased models case and accents."""
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=None, lowercase=do_lower_case
    )


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


def _read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; {} if the file does not exist."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({reason_of(error)}); check its permissions") from error
    except ValueError as error:
        raise InputError(f"{path}: not valid JSON ({error})") from error
    if not isinstance(document, dict):
        raise InputError(f"{path}: found {type(document).__name__}, expected a JSON object")
    return document


def _stated_tokens(directory: Path, configuration: dict[str, Any], fast: dict[str, Any]) -> tuple[tuple[str, ...], str]:
    """Return the tokens of a directory and the path that they are from; InputError if another file contradicts them."""
    vocabulary_path, fast_path = directory / VOCABULARY_NAME, directory / FAST_NAME
    fast_ids = _ids_of_fast(fast, fast_path) if fast else {}
    if vocabulary_path.is_file():
        tokens, where = read_vocabulary(vocabulary_path), str(vocabulary_path)
    elif fast:  # newer Hugging Face directories have it in place of vocab.txt
        tokens, where = tuple(sorted(fast_ids, key=fast_ids.__getitem__)), str(fast_path)
        gap = next((index for index, token in enumerate(tokens) if fast_ids[token] != index), None)
        if gap is not None:
            raise InputError(
                f"{fast_path}: the ids of its {len(tokens)} tokens are not 0 to {len(tokens) - 1}: none has id {gap}; "
                "give that id to an unused entry"
            )
    else:
        return (), ""
    ids = check_tokens(tokens, where)

    # transformers reads the other files. What they lack may be an unused entry: a repeated token has one id there.
    added = [entry for entry in fast.get("added_tokens") or () if isinstance(entry, dict)]
    decoder = configuration.get("added_tokens_decoder") or {}
    stated: dict[str, dict[str, Any]] = {
        FAST_NAME: {_content(entry): entry.get("id") for entry in added} | fast_ids,
        CONFIGURATION_NAME: {_content(entry): index for index, entry in decoder.items()},
    }
    for name, stated_ids in stated.items():
        own = [token for token in stated_ids if token in fast_ids or token in SPECIAL_TOKENS]
        others = [token for token in own if str(stated_ids[token]) != str(ids.get(token))]
        if name == FAST_NAME and fast:
            others += [token for token in tokens if token not in stated_ids and not token.startswith("[unused")]
        if others:
            raise InputError(
                f"{directory / name}: {others[0]!r} has id {stated_ids.get(others[0], 'none')}, in {where} it has "
                f"{ids.get(others[0], 'none')} (the first of {len(others)}); give files of one vocabulary, in which a "
                "token's id is the row of its embedding"
            )
    return tokens, where


def _ids_of_fast(fast: dict[str, Any], path: Path) -> dict[str, int]:
    """Return token -> id of a tokenizer.json."""
    model = fast.get("model") or {}
    vocabulary = model.get("vocab")
    if model.get("type", "WordPiece") != "WordPiece" or not isinstance(vocabulary, dict):
        raise InputError(f"{path}: not a WordPiece tokenizer, as BERT needs")
    return vocabulary


def _normalization_of_fast(fast: dict[str, Any]) -> dict[str, Any]:
    """Return the step of a tokenizer.json's normalizer that states the case, also within a Sequence; {} without one."""
    entry = fast.get("normalizer")
    steps = [entry, *(entry.get("normalizers") or ())] if isinstance(entry, dict) else []
    return next((step for step in steps if isinstance(step, dict) and "lowercase" in step), {})


_BASIC_STEPS = {
    "do_basic_tokenize": True,
    "do_word_tokenize": True,
    "word_tokenizer_type": "basic",
    "subword_tokenizer_type": "wordpiece",
}
"""Settings of Hugging Face's tokenizers of BERT, and what they are for BERT's own code."""


def _refuse_other_words(configuration: dict[str, Any], path: Path) -> None:
    """Raise UsageError for settings that split a text into other words, such as MeCab's of Japanese models."""
    stated = {key: configuration[key] for key in _BASIC_STEPS if configuration.get(key) is not None}
    other = {key: value for key, value in stated.items() if value != _BASIC_STEPS[key]}
    if configuration.get("tokenizer_class") == "BertJapaneseTokenizer":
        other["tokenizer_class"] = "BertJapaneseTokenizer"
    if other:
        settings = ", ".join(f"{key}={value}" for key, value in other.items())
        raise UsageError(f"{path}: {settings}; this project splits words and pieces as BERT's own code does only")


def _refuse_other_normalization(configuration: dict[str, Any], do_lower_case: bool, path: Path) -> None:
    """Raise UsageError for settings of Hugging Face's tokenizer that tokenize differently from BERT's own code."""
    if configuration.get("strip_accents") not in (None, do_lower_case):
        raise UsageError(
            f"{path}: strip_accents={configuration['strip_accents']} with do_lower_case={do_lower_case}; "
            "BERT's own code strips accents exactly when it lower-cases, and so does this one"
        )
    for key in ("tokenize_chinese_chars", "handle_chinese_chars"):
        if configuration.get(key) not in (None, True):
            raise UsageError(f"{path}: {key}=false; BERT's own code separates Chinese characters, and so does this one")


def _refuse_other_fast_settings(fast: dict[str, Any], do_lower_case: bool, path: Path) -> None:
    """Raise UsageError for steps and settings of a tokenizer.json that tokenize differently from BERT's own code."""
    for step, expected in (("normalizer", "BertNormalizer"), ("pre_tokenizer", "BertPreTokenizer")):
        entry = fast.get(step)
        name = entry.get("type") if isinstance(entry, dict) else entry
        if name != expected:
            raise UsageError(f"{path}: its {step} is {name}, expected {expected}, which is what BERT's own code does")
    if fast["normalizer"].get("clean_text") not in (None, True):
        raise UsageError(f"{path}: clean_text=false; BERT's own code drops control characters, and so does this one")
    _refuse_other_normalization(fast["normalizer"], do_lower_case, path)
    for key, value in (("unk_token", UNK), ("continuing_subword_prefix", CONTINUATION_PREFIX)):
        if fast["model"].get(key, value) != value:
            raise UsageError(f"{path}: {key} is {fast['model'][key]!r}, expected {value!r}, as in BERT's own code")


def _refuse_added_tokens(configuration: dict[str, Any], fast: dict[str, Any], directory: Path) -> None:
    """Raise UsageError for tokens besides the five special ones that a file adds to the vocabulary.

    Hugging Face's tokenizer cuts them out of the text before it is split into words, which BERT's own code does not.
    """
    lists = {
        "added_tokens.json": _read_json(directory / "added_tokens.json"),
        CONFIGURATION_NAME: [_content(entry) for entry in (configuration.get("added_tokens_decoder") or {}).values()],
        FAST_NAME: [_content(entry) for entry in fast.get("added_tokens") or ()],
    }
    for name, tokens in lists.items():
        added = [token for token in tokens if token not in SPECIAL_TOKENS]
        if added:
            shown = ", ".join(map(repr, added[:5])) + (", …" if len(added) > 5 else "")
            raise UsageError(
                f"{directory / name}: adds {shown} to the vocabulary, expected none but the special tokens; BERT's own "
                "code reads no added tokens, so give a model without them"
            )


def _content(entry: Any) -> str:
    """Return the text of an added token, which is an object or the text itself."""
    return str(entry.get("content") if isinstance(entry, dict) else entry)


class StringEncoder:
    """Encodes arrays of sentences, and caches the ids of the strings between spaces."""

    def __init__(
        self,
        encode_batch: Callable[[Sequence[str]], list[list[int]]],
        *,
        max_cached: int = 500_000,
        max_characters: int = 8_000_000,
        block_bytes: int = 8 << 20,
    ) -> None:
        """`encode_batch` returns the ids of many strings; it must not look across a space.

        The cache is emptied at `max_cached` distinct strings, or at `max_characters` in them: first in scripts without
        spaces, where a string is a sentence. `block_bytes` of text are tokenized at a time.
        """
        self._encode_batch = encode_batch
        self._max_cached, self._max_characters, self._block_bytes = max_cached, max_characters, block_bytes
        self._ids: dict[str, bytes] = {}
        self._num_characters = 0

    def encode(self, sentences: pa.StringArray) -> tuple[np.ndarray, np.ndarray]:
        """Tokenize S sentences; returns all their ids (T,) int32, and the number of ids of each sentence (S,) int64."""
        # Some text at a time, because the ids of the strings take ten times its size: a row group may hold books.
        ends = np.cumsum(pc.binary_length(sentences).to_numpy(zero_copy_only=False).astype(np.int64))
        cuts = [0, *(np.flatnonzero(np.diff(ends // self._block_bytes)) + 1).tolist(), len(sentences)]
        if len(cuts) == 2:
            return self._encode_block(sentences)
        blocks = [self._encode_block(sentences.slice(start, stop - start)) for start, stop in itertools.pairwise(cuts)]
        ids, counts = map(np.concatenate, zip(*blocks))
        return ids, counts

    def _encode_block(self, sentences: pa.StringArray) -> tuple[np.ndarray, np.ndarray]:
        # Tokenize each distinct string between spaces once: BERT's normalization never looks across a space.
        words = pc.split_pattern(sentences, " ")
        coded = words.flatten().dictionary_encode()
        encoded = self._encode_words(coded.dictionary.to_pylist())
        flat = np.frombuffer(b"".join(encoded), dtype=np.int32)
        num_ids = np.array([len(ids) for ids in encoded], dtype=np.int64) // flat.itemsize
        starts = np.cumsum(num_ids) - num_ids
        # Expand the strings to the tokens of all sentences.
        word = coded.indices.to_numpy()  # (W,)
        word_ends = np.cumsum(num_ids[word])
        # Token t of the result is token t - (start of its word there) + (start of its word in `flat`).
        shift = starts[word] - word_ends + num_ids[word]
        num_tokens = int(word_ends[-1]) if len(word) else 0
        tokens = flat[np.arange(num_tokens) + np.repeat(shift, num_ids[word])]
        ends = np.concatenate([np.zeros(1, dtype=np.int64), word_ends])
        offsets = words.offsets.to_numpy()
        return tokens, np.diff(ends[offsets - offsets[0]] if len(offsets) else ends)

    def _encode_words(self, words: list[str]) -> list[bytes]:
        if len(self._ids) > self._max_cached or self._num_characters > self._max_characters:
            self._ids.clear()
            self._num_characters = 0
        cached = self._ids
        unknown = [word for word in words if word not in cached]
        self._num_characters += sum(map(len, unknown))
        for word, ids in zip(unknown, self._encode_batch(unknown)):
            cached[word] = array.array("i", ids).tobytes()
        return [cached[word] for word in words]


class SentenceEncoder(StringEncoder):
    """Tokenizes arrays of sentences."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        super().__init__(tokenizer.encode_batch)
        self.tokenizer = tokenizer

    @property
    def vocab_size(self) -> int:
        return self.tokenizer.vocab_size
