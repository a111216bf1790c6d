"""tokenizer.json gives every reader of the tokenizers library the ids of this project's own tokenizer."""

import itertools
import json

import pyarrow.parquet as pq
import pytest
import tokenizers

from bert_pipeline.vocabulary.files import SPECIAL_TOKENS, read_vocabulary
from bert_pipeline.vocabulary.tokenizer import Tokenizer

TOKENS = [*SPECIAL_TOKENS, "un", "##aff", "##able", "the", "##e", "cafe", ",", "中"]


def spells_special(text):
    return any(token in text for token in SPECIAL_TOKENS)


@pytest.fixture
def directory(tmp_path):
    Tokenizer.from_tokens(TOKENS, do_lower_case=True).save(tmp_path, model_max_length=16)
    return tmp_path


def test_a_model_has_the_file_and_a_vocabulary_has_not(directory, tmp_path):
    (tmp_path / "vocabulary").mkdir()
    tokenizer = Tokenizer.from_directory(directory)
    tokenizer.save(tmp_path / "vocabulary")
    assert sorted(path.name for path in (tmp_path / "vocabulary").iterdir()) == ["tokenizer_config.json", "vocab.txt"]
    (directory / "vocab.txt").unlink()
    assert Tokenizer.from_directory(directory).sha256 == tokenizer.sha256


def test_library_adds_special_tokens_and_segments_and_joins_pieces(directory):
    engine = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    pair = engine.encode("The unaffable Café", "中 " * 40)
    assert pair.tokens[:7] == ["[CLS]", "the", "un", "##aff", "##able", "cafe", "[SEP]"]
    assert pair.tokens[7:] == ["中"] * 40 + ["[SEP]"]  # nothing is cut
    assert pair.type_ids == [0] * 7 + [1] * 41
    assert engine.decode(pair.ids[:7]) == "the unaffable cafe"
    assert engine.padding is engine.truncation is None


@pytest.mark.parametrize("model_type", ["bert", "modernbert"])
@pytest.mark.parametrize("name", ["tokenizer.json alone", "both files"])
def test_transformers_opens_it_for_both_types_of_model(directory, model_type, name):
    transformers = pytest.importorskip("transformers")
    (directory / "config.json").write_text(json.dumps({"model_type": model_type}))
    if name == "tokenizer.json alone":
        (directory / "vocab.txt").unlink()
    theirs, ours = transformers.AutoTokenizer.from_pretrained(directory), Tokenizer.from_directory(directory)
    row = theirs("The unaffable Café", "中")
    assert row["input_ids"] == [ours.cls_id, *ours.encode("The unaffable Café"), ours.sep_id, 12, ours.sep_id]
    assert theirs.model_max_length == 16
    assert (theirs.pad_token_id, theirs.unk_token_id, theirs.mask_token_id) == (ours.pad_id, ours.unk_id, ours.mask_id)


@pytest.mark.real_data
@pytest.mark.parametrize(("name", "do_lower_case"), [("uncased", True), ("cased", False), ("chinese", True)])
def test_ids_are_ours_on_golden_and_real_lines(real_data, name, do_lower_case, tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizer = Tokenizer.from_tokens(read_vocabulary(real_data / f"vocab/bert-base-{name}-vocab.txt"), do_lower_case)
    tokenizer.save(tmp_path, model_max_length=512)
    golden = (real_data / f"golden/tokenization.{name}.jsonl").read_text(encoding="utf-8").splitlines()
    table = pq.read_table(real_data / "pretraining/wikipedia/train-00000.parquet", columns=["text"])
    lines = itertools.chain.from_iterable(text.splitlines() for text in table.column("text").to_pylist())
    real = list(itertools.islice((line for line in lines if line), 20_000 if name == "uncased" else 5_000))
    texts = [text for text in (*(json.loads(line)["text"] for line in golden), *real) if not spells_special(text)]
    assert len(texts) > len(real) + 730
    expected = tokenizer.encode_batch(texts)
    engine = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    assert [encoding.ids for encoding in engine.encode_batch_fast(texts, add_special_tokens=False)] == expected
    # The class of "bert" has a limit of its own: words of more than 100 characters.
    texts, expected = texts[:5_000], expected[:5_000]  # transformers takes a minute for all, to ask the same engine
    for model_type, limit in (("bert", 100), ("modernbert", 200)):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
        short = [
            (text, ids)
            for text, ids in zip(texts, expected)
            if limit == 200 or len(max(text.split(), key=len, default="")) <= 100
        ]
        assert len(short) > len(texts) - 10
        assert theirs([text for text, _ in short], add_special_tokens=False)["input_ids"] == [ids for _, ids in short]
