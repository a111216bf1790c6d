"""Directories of tokenizers as other authors publish them, trained on a little text of many scripts."""

import json
import sys
import unicodedata
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from bert_pipeline.vocabulary.files import SPECIAL_TOKENS

KINDS = ("roberta", "modernbert", "unigram", "wordpiece")
ROBERTA_NAMES = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")


def training_lines() -> list[str]:
    return [
        "The unaffable town of Novelle lies by the river; its mayor, Anna Lind, didn't reply.",
        "Where does the river flow? It flows north, past the old mill (built in 1874), to the sea.",
        "Ñandú, café, naïve, Zürich, Þór: accents; Москва слезам не верит. 東京は日本の首都です。",
        "हिन्दी में लिखा हुआ वाक्य। นี่คือประโยคภาษาไทย 👍🏽 ½ ﬁne ǅ Ⅷ",
        *("town river mill mayor north reply café " * 3 for _ in range(20)),
    ]


def every_category() -> list[str]:
    """Two words around a character of each Unicode category, at the start, in the middle and at the end of one."""
    found: dict[str, list[str]] = {}
    for code in range(sys.maxunicode + 1):
        character = chr(code)
        category = unicodedata.category(character)
        if category != "Cs" and len(found.setdefault(category, [])) < 4:
            found[category].append(character)
    assert len(found) == 29  # all but surrogates
    return [text for own in found.values() for c in own for text in (f"{c}town {c}", f"ri{c}ver town", f"river{c} {c}")]


def make(kind: str, directory: Path) -> Path:
    """Write tokenizer.json and tokenizer_config.json of a kind, with truncation and padding set."""
    directory.mkdir(parents=True, exist_ok=True)
    names, configuration = SPECIAL_TOKENS, {}
    if kind in ("roberta", "modernbert"):
        names = ROBERTA_NAMES if kind == "roberta" else SPECIAL_TOKENS
        engine = tokenizers.Tokenizer(models.BPE())
        engine.normalizer = None if kind == "roberta" else normalizers.NFC()
        engine.pre_tokenizer, engine.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
        own = list(names) if kind == "roberta" else []  # ModernBERT's are behind the vocabulary
        trainer = trainers.BpeTrainer(
            vocab_size=600,
            special_tokens=own,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
    elif kind == "unigram":
        names = ROBERTA_NAMES
        engine = tokenizers.Tokenizer(models.Unigram())
        engine.normalizer = normalizers.Sequence(
            [normalizers.NFKC(), normalizers.Replace(tokenizers.Regex(" {2,}"), " ")]
        )
        engine.pre_tokenizer, engine.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=300, special_tokens=list(names), unk_token="<unk>", show_progress=False
        )
    else:
        engine = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
        engine.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
        engine.pre_tokenizer, engine.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
        trainer = trainers.WordPieceTrainer(vocab_size=400, special_tokens=list(names), show_progress=False)
    engine.train_from_iterator(training_lines(), trainer)
    flags = {names[4]: {"lstrip": kind != "wordpiece"}}
    engine.add_special_tokens([tokenizers.AddedToken(name, special=True, **flags.get(name, {})) for name in names])
    if kind == "roberta":
        engine.post_processor = processors.RobertaProcessing(("</s>", 3), ("<s>", 2))
    engine.enable_truncation(8)
    engine.enable_padding(length=8)
    engine.save(str(directory / "tokenizer.json"))
    if names is ROBERTA_NAMES:
        roles = ("pad", "unk", "cls", "sep", "mask")
        configuration = {f"{role}_token": name for role, name in zip(roles, names)}
    (directory / "tokenizer_config.json").write_text(json.dumps(configuration))
    return directory
