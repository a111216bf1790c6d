"""Scores of pairs equal a slow loop through transformers; intervals, ties and left-out pairs."""

import itertools
import math

import numpy as np
import pytest
import torch

from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.initialization import new_model
from bert_model.model.weights import load_model, save_model
from bert_model.zero_shot.exam import score_pairs
from bert_model.zero_shot.result import PairScores, mean_accuracy
from bert_pipeline.exam.pairs import Pair
from bert_pipeline.vocabulary.files import SPECIAL_TOKENS
from bert_pipeline.vocabulary.tokenizer import Tokenizer

transformers = pytest.importorskip("transformers")

WORDS = ["the", "cat", "cats", "sit", "##s", "##t", "##ing", "down", "mat", "on", ".", "ru", "##n"]
TOKENIZER = Tokenizer.from_tokens([*SPECIAL_TOKENS, *WORDS], True)
CONFIG = BertConfig(
    vocab_size=TOKENIZER.vocab_size,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    max_position_embeddings=24,
)
PAIRS = [
    Pair(pair_id="a", kind="agreement", good=("The cat sits down.",), bad=("The cats sits down.",)),
    Pair(pair_id="b", kind="agreement", good=("Cats sitting on the mat.",), bad=("Cats on sitting the mat",)),
    Pair(pair_id="c", kind="order", good=("the cat running on the mat",), bad=("the runs cat on the mat",)),
    Pair(pair_id="d", kind="next_sentence", good=("The cat.", "On the mat."), bad=("On the mat.", "The cat.")),
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """One saved checkpoint, loaded here and by transformers."""
    directory = tmp_path_factory.mktemp("model")
    model = new_model(BertForPreTraining, CONFIG, seed=3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(10 if parameter.dim() > 1 else 1)  # makes a visible difference
    save_model(model, directory, TOKENIZER)
    ours, _ = load_model(BertForPreTraining, directory)
    theirs = transformers.BertForPreTraining.from_pretrained(directory).eval()
    return ours, theirs, transformers.AutoTokenizer.from_pretrained(directory)


@torch.no_grad()
def slow_score(theirs, tokenizer, text, whole_words):
    """One forward pass per token, in the words of the papers."""
    encoded = tokenizer(*text, return_tensors="pt")
    if len(text) == 2:
        return theirs(**encoded).seq_relationship_logits.log_softmax(-1)[0, 0].item()
    ids = encoded["input_ids"][0]
    tokens = tokenizer.convert_ids_to_tokens(ids)
    total = 0.0
    for position in range(1, len(ids) - 1):
        masked = ids.clone()
        masked[position] = tokenizer.mask_token_id
        later = position + 1
        while whole_words and tokens[later].startswith("##"):
            masked[later] = tokenizer.mask_token_id
            later += 1
        logits = theirs(input_ids=masked[None], token_type_ids=encoded["token_type_ids"]).prediction_logits
        total += logits[0, position].log_softmax(-1)[ids[position]].item()
    return total


@pytest.mark.parametrize("whole_words", [False, True])
def test_scores_equal_a_slow_loop_through_transformers(models, whole_words):
    ours, theirs, tokenizer = models
    found = score_pairs(ours, TOKENIZER, PAIRS, whole_words=whole_words)
    for side in ("good", "bad"):
        expected = [slow_score(theirs, tokenizer, getattr(pair, side), whole_words) for pair in PAIRS]
        np.testing.assert_allclose(getattr(found, side), expected, atol=1e-4, rtol=0)
    assert found.pairs == tuple(PAIRS)


def test_masking_whole_words_changes_texts_with_words_of_several_pieces(models):
    alone, together = (score_pairs(models[0], TOKENIZER, PAIRS, whole_words=choice) for choice in (False, True))
    assert abs(alone.good[0] - together.good[0]) > 1e-2  # sit ##s
    one_piece = [Pair(pair_id="p", kind="k", good=("the cat",), bad=("cat the",))]
    alone, together = (score_pairs(models[0], TOKENIZER, one_piece, whole_words=choice) for choice in (False, True))
    assert alone.good == pytest.approx(together.good)


def test_scores_do_not_depend_on_the_batch(models):
    alone = [score_pairs(models[0], TOKENIZER, [pair]).good for pair in PAIRS]
    np.testing.assert_allclose(score_pairs(models[0], TOKENIZER, PAIRS).good, np.concatenate(alone), atol=1e-5)


@pytest.mark.parametrize("whole_words", [False, True])
def test_scores_are_equal_for_any_number_of_workers(models, whole_words):
    pairs = [
        Pair(pair_id=str(number), kind="k", good=(f"the {first} on {second}",), bad=(f"{second} on the {first}",))
        for number, (first, second) in enumerate(itertools.product(WORDS, WORDS))
    ] + PAIRS
    threads = torch.get_num_threads()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=whole_words):  # a property of each thread
        one, three = (
            score_pairs(models[0], TOKENIZER, pairs, num_workers=number, whole_words=whole_words) for number in (1, 3)
        )
    assert (one.good == three.good).all()
    assert (one.bad == three.bad).all()
    assert torch.get_num_threads() == threads
    # In bfloat16 the scores differ from those of float32.
    whole = score_pairs(models[0], TOKENIZER, pairs, whole_words=whole_words)
    assert (np.abs(one.good - whole.good).max() > 1e-3) == whole_words


def test_scoring_switches_dropout_off_and_restores_the_mode(models):
    model = models[0].train()
    first, second = (score_pairs(model, TOKENIZER, PAIRS).good for _ in range(2))
    assert (first == second).all()
    assert model.training
    model.eval()


def test_pairs_too_long_or_without_tokens_are_left_out(models, caplog):
    long = Pair(pair_id="e", kind="order", good=("cat " * 23,), bad=("the cat",))
    empty = Pair(pair_id="f", kind="order", good=("the cat",), bad=("\u200b",))
    found = score_pairs(models[0], TOKENIZER, [long, PAIRS[0], empty])
    assert found.pairs == (PAIRS[0],)
    assert "2 of 3 pairs are left out" in caplog.text


def test_model_without_next_sentence_objective_scores_single_texts_only(models):
    assert score_pairs(models[0], TOKENIZER, PAIRS, next_sentence=False).pairs == tuple(PAIRS[:3])
    assert math.isnan(mean_accuracy(score_pairs(models[0], TOKENIZER, PAIRS[3:], next_sentence=False).by_kind()))


def test_accuracy_is_a_mean_over_kinds_and_a_tie_counts_half():
    pairs = [Pair(pair_id=str(i), kind="a" if i < 4 else "b", good=("x",), bad=("y",)) for i in range(5)]
    scores = PairScores(tuple(pairs), np.array([1.0, 1, 0, 1, 2]), np.array([0.0, 0, 0, 2, 1]))
    assert scores.correct.tolist() == [1, 1, 0.5, 0, 1]
    kinds = scores.by_kind()
    assert (kinds["a"].count, kinds["a"].accuracy, kinds["b"].accuracy) == (4, 62.5, 100)
    assert mean_accuracy(kinds) == 81.25
    # Wilson's interval of 1 success in 1 trial: from 1 / (1 + z**2) to 1.
    assert kinds["b"].low == pytest.approx(100 / (1 + 1.959963984540054**2))
    assert kinds["b"].high == pytest.approx(100)
