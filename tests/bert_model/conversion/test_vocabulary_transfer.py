"""A model moves to another vocabulary with the rows that both share, and training continues from it."""

import json
import re

import pytest
import small_corpus
import torch
from safetensors.torch import load_file

from bert_model.cli import main
from bert_model.conversion.vocabulary_transfer import adapt_model, rows_of
from bert_model.model.bert import BertForPreTraining, BertModel
from bert_model.model.config import BertConfig, ModernConfig
from bert_model.model.initialization import new_model
from bert_model.model.weights import load_model, save_model
from bert_pipeline.corpus.parquet import Document
from bert_pipeline.errors import UsageError
from bert_pipeline.manifest import load_manifest
from bert_pipeline.vocabulary.files import SPECIAL_TOKENS, model_max_length
from bert_pipeline.vocabulary.tokenizer import Tokenizer

PIECES = [*small_corpus.SYLLABLES, *(f"##{syllable}" for syllable in small_corpus.SYLLABLES), "."]
OLD = Tokenizer.from_tokens(["[PAD]", "[unused0]", *SPECIAL_TOKENS[1:], *PIECES], do_lower_case=True)
NEW = Tokenizer.from_tokens([*SPECIAL_TOKENS, *small_corpus.WORDS[::2], *reversed(PIECES), "ß"], do_lower_case=True)


def save_tokenizer(tokenizer, directory):
    directory.mkdir()
    tokenizer.save(directory)
    return directory


@pytest.fixture
def model(tmp_path):
    """An untrained model with the old vocabulary and five spare rows."""
    shape = {"num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig.from_preset("tiny", vocab_size=OLD.vocab_size + 5, max_position_embeddings=64, **shape)
    network = new_model(BertForPreTraining, config, seed=1)
    torch.nn.init.normal_(network.cls.predictions.bias, generator=torch.Generator().manual_seed(1))
    (tmp_path / "model").mkdir()
    save_model(network, tmp_path / "model", OLD)
    return tmp_path / "model"


def test_pieces_are_the_longest_that_the_old_vocabulary_has():
    tokens = ["un", "unit", "##it", "##ity", "##s", "caf", "##e", "x"]
    vocabulary = Tokenizer.from_tokens([*SPECIAL_TOKENS, *tokens], do_lower_case=True)

    def spelled(token):
        (*_, row), _ = rows_of(Tokenizer.from_tokens([*SPECIAL_TOKENS, token], do_lower_case=False), vocabulary)
        return [vocabulary.tokens[index] for index in row]

    assert spelled("unit") == ["unit"]
    assert spelled("units") == ["unit", "##s"]
    assert spelled("unity") == []  # greedy, as WordPiece: "unit" leaves "y"
    assert spelled("##ities") == []
    assert spelled("##its") == ["##it", "##s"]
    assert spelled("##x") == []  # a word's start is no continuation
    assert spelled("Cafés") == ["caf", "##e", "##s"]  # the old vocabulary is lower-casing


def test_rows_and_decoder_bias_follow_the_tokens(model, tmp_path):
    counts = adapt_model(model, save_tokenizer(NEW, tmp_path / "new"), tmp_path / "adapted").counts
    shared = len(SPECIAL_TOKENS) + len(PIECES)
    assert counts == {
        "vocab_size": NEW.vocab_size,
        "kept_rows": shared,
        "mean_rows": len(small_corpus.WORDS[::2]),
        "random_rows": 1,
        "positions": 64,
    }
    before, after = (load_file(path / "model.safetensors") for path in (model, tmp_path / "adapted"))
    moved = {"bert.embeddings.word_embeddings.weight", "cls.predictions.bias"}
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before.keys() - moved)
    for name in moved:
        old, new = before[name], after[name]
        assert len(new) == NEW.vocab_size
        for token in (*SPECIAL_TOKENS, *PIECES):
            assert torch.equal(new[NEW.token_to_id(token)], old[OLD.token_to_id(token)])
        for word in small_corpus.WORDS[::2]:
            mean = old[OLD.encode(word)].mean(dim=0)
            torch.testing.assert_close(new[NEW.token_to_id(word)], mean)
    random = after["bert.embeddings.word_embeddings.weight"][NEW.token_to_id("ß")]
    assert 0.01 < random.std() < 0.04
    assert Tokenizer.from_directory(tmp_path / "adapted").sha256 == NEW.sha256
    config = BertConfig.from_directory(tmp_path / "adapted")
    assert config.vocab_size == NEW.vocab_size
    assert model_max_length(tmp_path / "adapted") == config.max_position_embeddings  # where transformers truncates


def test_headless_model_is_adapted_and_the_same_vocabulary_refused(model, tmp_path, capsys):
    config = BertConfig.from_directory(model)
    save_model(new_model(BertModel, config, seed=1), model, OLD)
    corpus = small_corpus.make_corpus(tmp_path / "corpus", [small_corpus.make_documents(4)])
    vocabulary = save_tokenizer(NEW, tmp_path / "new")
    command = ["adapt", str(model), "--vocab", str(vocabulary), "--corpus", str(corpus)]
    assert main([*command, "--output", str(tmp_path / "adapted")]) == 0
    assert "no masked-LM head, so no loss" in capsys.readouterr().out
    with pytest.raises(UsageError, match="is the vocabulary of .* already"):
        adapt_model(tmp_path / "adapted", vocabulary, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def make_repetitive_corpus(directory):
    """Documents that repeat one word: soon learned from the other words of a text."""
    documents = [
        Document(
            document_id=f"made:{index}",
            title="",
            language="en",
            sentences=(" ".join([word] * 5) + ".",) * 8,
            passage_starts=(0,),
            split="held_out" if index % 10 == 0 else "train",
        )
        for index, word in enumerate(small_corpus.WORDS * 2)
    ]
    return str(small_corpus.make_corpus(directory, [documents]))


@pytest.mark.slow
def test_pretraining_continues_from_an_adapted_model(tmp_path, capsys):
    corpus = make_repetitive_corpus(tmp_path / "corpus")
    path = {name: str(tmp_path / name) for name in ("old", "new", "before", "trained", "adapted", "after", "more")}
    save_tokenizer(OLD, tmp_path / "old")
    save_tokenizer(NEW, tmp_path / "new")

    def run(*words):
        capsys.readouterr()
        assert main([*words]) == 0
        return capsys.readouterr().out

    def pretrain(instances, output, steps, *more):
        phase = {
            "max_seq_length": 32,
            "steps": steps,
            "global_batch_size": 32,
            "warmup_steps": 2,
            "instances": instances,
        }
        sizes = {"hidden_size": 32, "intermediate_size": 64, "hidden_dropout_prob": 0.0}
        config = {
            "model": {"preset": "tiny", "overrides": sizes},
            "phases": [phase | {"learning_rate": 3e-3}],
            "optimizer": {"name": "adamw"},
            "evaluation_interval_steps": 0,
        }
        (tmp_path / "run.yaml").write_text(json.dumps(config))
        options = ("--config", str(tmp_path / "run.yaml"), "--experiment", "", "--device", "cpu")
        return float(json.loads(run("pretrain", *options, "--output", output, *more))["held_out/mlm_loss"])

    length = ("--max-seq-length", "32", "--dupe-factor", "2")
    run("instances", corpus, "--vocab", path["old"], "--output", path["before"], *length)
    pretrain(path["before"], path["trained"], 250)
    model = f"{path['trained']}/model"
    text = run("adapt", model, "--vocab", path["new"], "--output", path["adapted"], "--corpus", corpus)
    counts = load_manifest(path["adapted"], kind="adapted_model").counts
    assert f"masked-LM loss {counts['mlm_loss']:.3f}; {counts['mlm_loss_random_rows']:.3f} with random" in text
    assert "held_out documents: " in text
    assert counts["mlm_loss"] < counts["mlm_loss_random_rows"]
    assert counts["quality"]["tokens_per_word"] < counts["old_quality"]["tokens_per_word"]
    run("instances", corpus, "--vocab", path["adapted"], "--output", path["after"], *length)
    assert pretrain(path["after"], path["more"], 5, "--from", path["adapted"]) < counts["mlm_loss_random_rows"]


# --- more positions ---


def test_more_positions_are_the_learned_ones_stretched(model, tmp_path, capsys):
    command = ["adapt", str(model), "--positions", "128", "--output", str(tmp_path / "long")]
    assert main(command) == 0
    assert "128 positions; " in capsys.readouterr().out
    before, after = (load_file(path / "model.safetensors") for path in (model, tmp_path / "long"))
    name = "bert.embeddings.position_embeddings.weight"
    rows = before.pop(name)
    stretched = after.pop(name)
    assert stretched.shape == (128, rows.shape[1])
    torch.testing.assert_close(stretched[[0, -1]], rows[[0, -1]])
    torch.testing.assert_close(stretched[1:-1:2], 0.75 * rows[:-1] + 0.25 * rows[1:])  # the middles of two halves
    torch.testing.assert_close(stretched[2::2], 0.25 * rows[:-1] + 0.75 * rows[1:])
    for other, tensor in after.items():  # the spare rows have no token
        assert torch.equal(tensor, before[other][: len(tensor)])
    long, _ = load_model(BertForPreTraining, tmp_path / "long")
    assert long.config.max_position_embeddings == model_max_length(tmp_path / "long") == 128
    ids = torch.randint(5, OLD.vocab_size, (2, 128), generator=torch.Generator().manual_seed(0))
    assert bool(long(ids).prediction_logits.isfinite().all())


def test_both_are_changed_at_once(model, tmp_path):
    vocabulary = save_tokenizer(NEW, tmp_path / "new")
    manifest = adapt_model(model, vocabulary, tmp_path / "both", positions=128)
    assert (manifest.counts["positions"], manifest.counts["vocab_size"]) == (128, NEW.vocab_size)
    load_model(BertForPreTraining, tmp_path / "both")


@pytest.mark.parametrize(
    ("options", "message"),
    [([], "nothing is to be changed; give --vocab"), (["--positions", "64"], "found 64, but .* has 64 already")],
)
def test_positions_that_are_there_already_are_refused(options, message, model, tmp_path, capsys):
    assert main(["adapt", str(model), *options, "--output", str(tmp_path / "long")]) != 0
    assert re.search(message, capsys.readouterr().err)
    assert not (tmp_path / "long").exists()


def test_modern_encoder_takes_another_vocabulary_and_has_positions_without_weights(tmp_path):
    shape = {"vocab_size": OLD.vocab_size, "num_hidden_layers": 1, "hidden_size": 32, "num_attention_heads": 2}
    network = new_model(BertForPreTraining, ModernConfig.from_preset("tiny", **shape), seed=1)
    torch.nn.init.normal_(network.decoder.bias)
    (tmp_path / "model").mkdir()
    save_model(network, tmp_path / "model", OLD)
    adapt_model(tmp_path / "model", save_tokenizer(NEW, tmp_path / "new"), tmp_path / "adapted")
    adapted, report = load_model(BertForPreTraining, tmp_path / "adapted")
    assert report.created == ()
    new, old = (torch.tensor([vocabulary.token_to_id(token) for token in PIECES]) for vocabulary in (NEW, OLD))
    assert torch.equal(adapted.decoder.bias[new], network.decoder.bias[old])
    words = [model.model.embeddings.tok_embeddings.weight for model in (adapted, network)]
    assert torch.equal(words[0][new], words[1][old])
    with pytest.raises(UsageError, match="no weights; .*model.overrides.max_position_embeddings=128"):
        adapt_model(tmp_path / "model", None, tmp_path / "long", positions=128)
