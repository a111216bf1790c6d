"""`bert adapt` between any two kinds of tokenizers: words keep their rows, whatever their tokens look like."""

import other_tokenizers
import pytest
import tiny_tasks
import torch

from bert_model.cli import main
from bert_model.conversion.vocabulary_transfer import WORD_EMBEDDINGS, adapt_model, rows_of
from bert_model.inference.predict import load_predictor
from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.initialization import new_model
from bert_model.model.weights import read_weights, save_model
from bert_pipeline.errors import UsageError
from bert_pipeline.vocabulary.tokenizer import Tokenizer


def own_wordpiece(directory):
    words = ["town", "river", "mill", "##s", "##er", "##e", "the", ",", "r", "##i", "##v", "n", "##o"]
    Tokenizer.from_tokens([*tiny_tasks.TOKENS[:5], *words], True).save(directory)
    return directory


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory):
    root = tmp_path_factory.mktemp("vocabularies")
    (root / "ours").mkdir()
    own_wordpiece(root / "ours")
    for kind in other_tokenizers.KINDS:
        other_tokenizers.make(kind, root / kind)
    return {name: Tokenizer.from_directory(root / name) for name in ("ours", *other_tokenizers.KINDS)} | {"root": root}


def model_with(tokenizer, directory):
    config = BertConfig.from_preset("tiny", vocab_size=tokenizer.vocab_size, hidden_size=32, max_position_embeddings=64)
    directory.mkdir(parents=True)
    save_model(new_model(BertForPreTraining, config, seed=0), directory, tokenizer)
    return directory


def start_of(tokenizer, word):
    """The id of a word that is one token with the blank in front of it."""
    (index,) = [i for i, surface in enumerate(tokenizer.surfaces) if surface == (word, True)]
    return index


@pytest.mark.parametrize("old", ["ours", *other_tokenizers.KINDS])
@pytest.mark.parametrize("new", ["ours", *other_tokenizers.KINDS])
def test_words_and_roles_keep_their_rows(vocabularies, old, new):
    if old == new:
        rows, kept = rows_of(vocabularies[new].with_special_tokens(["[E1]"]), vocabularies[old])
        assert rows[:-1] == [[index] for index in range(vocabularies[old].vocab_size)]
        assert rows[-1] == [i for i in vocabularies[old].encode("[E1]") if i != vocabularies[old].unk_id]
        assert all(kept[:-1])
        return
    old, new = vocabularies[old], vocabularies[new]
    rows, kept = rows_of(new, old)
    for mine, theirs in zip(new.names, old.names):
        assert rows[new.token_to_id(mine)] == [old.token_to_id(theirs)]
    index = start_of(new, "river")
    assert rows[index] == [start_of(old, "river")]
    assert kept[index]
    assert all(0 <= index < old.vocab_size for own in rows for index in own)
    assert all(len(own) == 1 for own, same in zip(rows, kept) if same)


def test_new_token_is_the_mean_of_what_the_old_vocabulary_reads(vocabularies):
    old, new = vocabularies["ours"], vocabularies["roberta"]
    rows, kept = rows_of(new, old)
    pieces = [i for i in range(new.vocab_size) if len(rows[i]) > 1]
    assert len(pieces) > 3
    for piece in pieces:
        text, begins = new.surfaces[piece]
        expected = old.encode(text) if begins else old.encode(f"r{text}")[1:] or old.encode(text)
        assert rows[piece] == expected
        assert not kept[piece]
    assert rows[new.token_to_id(",")] == [old.token_to_id(",")]
    part_of_a_character = new.token_to_id("ä")  # the byte E4
    assert rows[part_of_a_character] == []


def test_adapted_model_computes_from_the_moved_rows(vocabularies, tmp_path):
    old, new, root = vocabularies["ours"], vocabularies["roberta"], vocabularies["root"]
    model = model_with(old, tmp_path / "model")
    assert main(["adapt", str(model), "--vocab", str(root / "roberta"), "--output", str(tmp_path / "adapted")]) == 0
    before, after = (read_weights(path).tensors[WORD_EMBEDDINGS[0]] for path in (model, tmp_path / "adapted"))
    assert torch.equal(after[start_of(new, "town")], before[start_of(old, "town")])
    assert Tokenizer.from_directory(tmp_path / "adapted").sha256 == new.sha256
    (answer,) = load_predictor("mlm", [tmp_path / "adapted"]).answer([{"text": "the <mask> river"}])
    assert answer["text"].endswith(" river")


def test_special_tokens_are_added_to_a_model(vocabularies, tmp_path, capsys):
    old = vocabularies["ours"]
    model = model_with(old, tmp_path / "model")
    command = ["adapt", str(model), "--output", str(tmp_path / "adapted")]
    assert main(command) == UsageError.exit_code
    assert "give --vocab, --special-token or --positions" in capsys.readouterr().err
    assert main([*command, "--special-token", "[the]", "--special-token", "[E1]"]) == 0
    new = Tokenizer.from_directory(tmp_path / "adapted")
    assert new.tokens == (*old.tokens, "[the]", "[E1]")
    assert new.encode("town[the]mill") == [old.token_to_id("town"), old.vocab_size, old.token_to_id("mill")]
    before, after = (read_weights(path).tensors[WORD_EMBEDDINGS[0]] for path in (model, tmp_path / "adapted"))
    assert torch.equal(after[: old.vocab_size], before)
    torch.testing.assert_close(after[old.vocab_size], before[old.token_to_id("the")])  # brackets are unknown
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "adapted")
    assert theirs("town[the]mill", add_special_tokens=False)["input_ids"] == new.encode("town[the]mill")
    with pytest.raises(UsageError, match="is the vocabulary of"):
        adapt_model(tmp_path / "adapted", tmp_path / "adapted", tmp_path / "same")
