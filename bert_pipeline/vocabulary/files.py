"""Files of a tokenizer: what a directory of this project or of Hugging Face states, checked before it is used."""

import dataclasses
import io
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bert_pipeline.errors import InputError
from bert_pipeline.manifest import files_of
from bert_pipeline.storage import open_binary, read_errors, reason_of

VOCABULARY_NAME = "vocab.txt"
CONFIGURATION_NAME = "tokenizer_config.json"
FAST_NAME = "tokenizer.json"
SENTENCE_NAME = "sentence_bert_config.json"

PAD, UNK, CLS, SEP, MASK = SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
ROLES = ("pad_token", "unk_token", "cls_token", "sep_token", "mask_token")
"""What tokenizer_config.json calls them."""
CONTINUATION_PREFIX = "##"
NO_FLAGS = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
"""Of an added token that is cut out of a text as it is."""
CASED_HELP = "whether the model's vocabulary keeps case and accents, if its files do not state it (old hub models)"


def read_vocabulary(path: Path | str) -> tuple[str, ...]:
    """Read a vocab.txt, one token per line. Only "\\n" ends a line: some vocabularies have U+2028 as a token."""
    try:
        with read_errors(path, ""), io.TextIOWrapper(open_binary(path), encoding="utf-8", newline="\n") as stream:
            return tuple(line.removesuffix("\n").removesuffix("\r") for line in stream)
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 ({error.reason} at byte {error.start})") from error


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stated:
    """What the files of a directory state of its tokenizer."""

    tokens: tuple[str, ...]
    """In the order of their ids, added ones included; () if the directory has no vocabulary."""
    where: str = ""
    """The file that they are from."""
    added: tuple[dict[str, Any], ...] = ()
    """Tokens besides the special ones that are cut out of a text: `content` and flags as in a tokenizer.json."""
    do_lower_case: bool = False
    """Of a WordPiece that is BERT's own."""
    refusal: str = ""
    """Why no text can be tokenized; the tokens are those of the embeddings even so."""
    pipeline: dict[str, Any] | None = None
    """The tokenizer.json, if it is any other tokenizer."""
    names: tuple[str, ...] = SPECIAL_TOKENS
    """What it calls the special tokens, in the order of `SPECIAL_TOKENS`."""


def read_stated(directory: Path, cased: bool | None = None) -> Stated:
    """Read vocab.txt or tokenizer.json, and the files beside it that state case, special and added tokens.

    `cased` is the case where none of them does. InputError if they are damaged or contradict each other.
    """
    configuration, fast = read_json(directory / CONFIGURATION_NAME), read_json(directory / FAST_NAME)
    configuration = read_json(directory / "special_tokens_map.json") | configuration
    if fast and _is_other(fast, configuration, directory):
        where = str(directory / FAST_NAME)
        ids = _ids_of_fast(fast, where) | {entry["content"]: entry["id"] for entry in fast.get("added_tokens") or ()}
        names = _names(configuration, ids, where)
        tokens, added = _with_added(_in_order(ids, where), names, configuration, fast, directory)
        return Stated(tokens=tokens, where=where, added=added, pipeline=fast, names=names)

    tokens, where = _stated_tokens(directory, configuration, fast)
    if not tokens:
        return Stated(tokens=())

    # The case is never guessed: a wrong one gives other ids without any error. Some models on the hub state it in
    # tokenizer.json only, also beside a vocab.txt.
    do_lower_case = configuration.get("do_lower_case")
    if do_lower_case is None:
        do_lower_case = _normalization_of_fast(fast).get("lowercase", None if cased is None else not cased)
    refusal = _other_words(configuration) or _other_normalization(configuration, do_lower_case)
    if not isinstance(do_lower_case, bool):
        refusal = (
            "do_lower_case is not stated there, nor lowercase in tokenizer.json; give --cased or --no-cased, or write "
            '{"do_lower_case": true} into it for an uncased vocabulary, false for a cased one'
        )
    tokens, added = _with_added(tokens, SPECIAL_TOKENS, configuration, fast, directory)
    return Stated(
        tokens=tokens,
        where=where,
        added=added,
        do_lower_case=bool(do_lower_case),
        refusal=refusal and f"{directory / CONFIGURATION_NAME}: {refusal}",
    )


def model_max_length(path: Path | str) -> int | None:
    """Return the number of tokens that a model's inputs are limited to; None if it has no limit.

    sentence-transformers has a file of its own for it, else tokenizer_config.json tells it.
    """
    length = read_json(files_of(path) / SENTENCE_NAME).get("max_seq_length")
    length = length or read_json(files_of(path) / CONFIGURATION_NAME).get("model_max_length")
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
    if missing := [token for token in SPECIAL_TOKENS if token not in ids]:
        raise InputError(
            f"{where}: {len(ids)} tokens, but no {', '.join(missing)}; a BERT vocabulary has all of "
            f"{', '.join(SPECIAL_TOKENS)}"
        )
    return ids


def read_json(path: Path) -> dict[str, Any]:
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
    where, fast_path = str(directory / VOCABULARY_NAME), str(directory / FAST_NAME)
    fast_ids = _ids_of_fast(fast, fast_path) if fast else {}
    if (directory / VOCABULARY_NAME).is_file():
        tokens = read_vocabulary(where)
    elif fast:  # newer Hugging Face directories have it in place of vocab.txt
        tokens, where = _in_order(fast_ids, fast_path), fast_path
    else:
        return (), ""
    ids = check_tokens(tokens, where)

    # transformers reads the other files. What they lack may be an unused entry: a repeated token has one id there.
    decoder = configuration.get("added_tokens_decoder") or {}
    stated: dict[str, dict[str, Any]] = {
        FAST_NAME: {entry["content"]: entry["id"] for entry in fast.get("added_tokens") or ()} | fast_ids,
        CONFIGURATION_NAME: {entry["content"]: index for index, entry in decoder.items()},
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


def _ids_of_fast(fast: dict[str, Any], where: str) -> dict[str, int]:
    """Return token -> id of a tokenizer.json's model; of a Unigram they are in a list, with their scores."""
    vocabulary = (fast.get("model") or {}).get("vocab")
    if isinstance(vocabulary, list):
        return {entry[0]: index for index, entry in enumerate(vocabulary)}
    if not isinstance(vocabulary, dict):
        raise InputError(f"{where}: its model has no vocab; give a file of the tokenizers library")
    return dict(vocabulary)


def _in_order(ids: dict[str, int], where: str) -> tuple[str, ...]:
    tokens = tuple(sorted(ids, key=ids.__getitem__))
    gap = next((index for index, token in enumerate(tokens) if ids[token] != index), None)
    if gap is not None:
        raise InputError(
            f"{where}: the ids of its {len(tokens)} tokens are not 0 to {len(tokens) - 1}: none has id {gap}; "
            "give that id to an unused entry"
        )
    return tokens


def _names(configuration: dict[str, Any], ids: dict[str, int], where: str) -> tuple[str, ...]:
    """Return what a vocabulary calls [PAD], [UNK], [CLS], [SEP] and [MASK]; InputError if one is not there."""
    names = []
    for key, usual, other in zip(ROLES, SPECIAL_TOKENS, ("<pad>", "<unk>", "<s>", "</s>", "<mask>")):
        own = configuration.get(key)
        stated = [own["content"] if isinstance(own, dict) else own] if own else [usual, other]
        name = next((name for name in stated if name in ids), None)
        if name is None:
            raise InputError(
                f"{where}: {len(ids)} tokens, but no {stated[0]}; BERT needs it: state another token as {key} in "
                f"{CONFIGURATION_NAME} that is in the vocabulary"
            )
        names.append(name)
    return tuple(names)


def _with_added(
    tokens: tuple[str, ...],
    names: Sequence[str],
    configuration: dict[str, Any],
    fast: dict[str, Any],
    directory: Path,
) -> tuple[tuple[str, ...], tuple[dict[str, Any], ...]]:
    """Return all tokens and the added ones, which have an id of the vocabulary or follow it."""
    # Lists of names are special tokens and need no id; flags are in tokenizer.json and tokenizer_config.json alone.
    lists = [configuration.get(key) or () for key in ("additional_special_tokens", "extra_special_tokens")]
    listed = [entry for own in lists for entry in (own.values() if isinstance(own, dict) else own)]
    found: dict[str, dict[str, Any]] = {}
    for entry in (
        *({"special": True} | (entry if isinstance(entry, dict) else {"content": entry}) for entry in listed),
        *({"content": content, "id": index} for content, index in read_json(directory / "added_tokens.json").items()),
        *(fast.get("added_tokens") or ()),
        *(entry | {"id": int(index)} for index, entry in (configuration.get("added_tokens_decoder") or {}).items()),
    ):
        if entry["content"] not in names:
            found[entry["content"]] = found.get(entry["content"], {}) | entry

    ids, added = {token: index for index, token in enumerate(tokens)}, []
    for content, entry in sorted(found.items(), key=lambda item: item[1].get("id", len(tokens) + len(found))):
        index = ids.setdefault(content, len(ids))
        if entry.get("id", index) != index:
            raise InputError(
                f"{directory}: the added token {content!r} has id {entry['id']}, expected {index}, its place in the "
                "vocabulary or behind it; give files of one vocabulary"
            )
        special = bool(entry.get("special"))
        flags = {**NO_FLAGS, "normalized": not special} | {name: entry[name] for name in NO_FLAGS if name in entry}
        added.append({"content": content, **flags, "special": special})
    return tuple(ids), tuple(added)


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


def _other_words(configuration: dict[str, Any]) -> str:
    """Say which settings split a text into other words, such as MeCab's of Japanese models; "" if none does."""
    stated = {key: configuration[key] for key in _BASIC_STEPS if configuration.get(key) is not None}
    other = {key: value for key, value in stated.items() if value != _BASIC_STEPS[key]}
    if configuration.get("tokenizer_class") == "BertJapaneseTokenizer":
        other["tokenizer_class"] = "BertJapaneseTokenizer"
    settings = ", ".join(f"{key}={value}" for key, value in other.items())
    return settings and f"{settings}; this project splits words and pieces as BERT's own code does only"


def _other_normalization(settings: dict[str, Any], do_lower_case: bool | None) -> str:
    """Say which setting of Hugging Face's tokenizer is another than BERT's own code has; "" if none is."""
    if settings.get("strip_accents") not in (None, do_lower_case):
        return (
            f"strip_accents={settings['strip_accents']} with do_lower_case={do_lower_case}; BERT's own code strips "
            "accents exactly when it lower-cases; write a tokenizer.json with this setting"
        )
    for key in ("tokenize_chinese_chars", "handle_chinese_chars"):
        if settings.get(key) not in (None, True):
            return (
                f"{key}=false; BERT's own code separates Chinese characters; write a tokenizer.json with this setting"
            )
    return ""


def _is_other(fast: dict[str, Any], configuration: dict[str, Any], directory: Path) -> bool:
    """Return whether a tokenizer.json tokenizes differently from BERT's own code.

    Beside a vocab.txt, a WordPiece is BERT's own but for the settings that tokenizer_config.json does not state.
    """
    model = fast.get("model") or {}
    normalization = _normalization_of_fast(fast)
    differs = bool(_other_normalization(normalization, normalization.get("lowercase")))
    if model.get("type", "WordPiece") != "WordPiece":
        return True
    if (directory / VOCABULARY_NAME).is_file():
        return differs and configuration.get("do_lower_case") is None
    steps = {step: entry.get("type") for step, entry in fast.items() if isinstance(entry, dict)}
    return (
        differs
        or (steps.get("normalizer"), steps.get("pre_tokenizer")) != ("BertNormalizer", "BertPreTokenizer")
        or fast["normalizer"].get("clean_text") not in (None, True)
        or model.get("unk_token", UNK) != UNK
        or model.get("continuing_subword_prefix", CONTINUATION_PREFIX) != CONTINUATION_PREFIX
    )
