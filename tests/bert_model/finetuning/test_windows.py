"""Texts longer than a row are read in windows: every prediction is of the whole text."""

import dataclasses
import json
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import tiny_tasks

from bert_model.finetuning.task_model import load_task_model
from bert_model.inference.predict import load_predictor
from bert_model.kinds import kind_of
from bert_model.kinds.base import softmax
from bert_model.registry.pyfunc import ARTIFACT, ServedModel
from bert_pipeline.tasks.example import TextExample

LENGTH, STRIDE = 16, 8
ROOM = LENGTH - 2  # next to [CLS] and [SEP]


def long_data():
    """Texts whose one telling word is behind the first window."""
    data = tiny_tasks.task_data("sst2")

    def long(example):
        return dataclasses.replace(example, text_a="the film and a song . " * 3 + example.text_a)

    return dataclasses.replace(
        data, train=[long(own) for own in data.train], dev={"dev": [long(own) for own in data.dev["dev"]]}
    )


@pytest.fixture(scope="module")
def tuned(model, tmp_path_factory):
    """Return a function from settings to a fine-tuning on the long texts."""

    def result_of(**settings):
        output = tmp_path_factory.mktemp("windows") / "out"
        return tiny_tasks.tune(long_data(), model, output, max_seq_length=LENGTH, **settings)

    return result_of


def test_windows_learn_what_is_behind_the_first_one(tuned):
    cut = tuned(epochs=[1.0])
    texts = [known["text"] for known in cut.results["known"] if known["kind"] == "cut_texts"]
    assert texts == [f"48 of 48 texts of train cut at {LENGTH} tokens", f"24 of 24 texts of dev cut at {LENGTH} tokens"]
    assert cut.results["degenerate"]  # all texts begin alike
    whole = tuned(stride=STRIDE)
    assert "cut_texts" not in [known["kind"] for known in whole.results["known"]]
    assert whole.metrics[whole.main_key]["mean"] > 90


@pytest.mark.parametrize(("pooling", "pool_by_hand"), [("mean", np.mean), ("max", np.max)])
def test_prediction_is_of_the_pooled_logits_of_all_windows(pooling, pool_by_hand, tuned):
    result = tuned(stride=STRIDE, window_pooling=pooling, epochs=[1.0])
    model, examples = load_task_model(result.path), long_data().dev["dev"]
    alone = dataclasses.replace(model.config, stride=0, window_pooling="mean")
    probabilities = []
    for example in examples:
        words = example.text_a.split()
        starts = range(0, len(words) - ROOM + STRIDE, STRIDE)
        windows = [TextExample(str(i), " ".join(words[i : i + ROOM])) for i in starts]
        logits = model.logits(kind_of(model.task).encode(windows, model.tokenizer, alone))
        assert logits.shape == (3, 2)
        probabilities.append(softmax(pool_by_hand(logits, axis=0)))

    # A short text beside them has one window.
    inputs = [{"id": example.example_id, "text": example.text_a} for example in examples] + [
        {"id": "short", "text": "a song ."}
    ]
    answers = load_predictor("sst2", [result.path]).answer(inputs)
    labels = model.task.labels
    found = [[answer["probabilities"][label] for label in labels] for answer in answers[:-1]]
    np.testing.assert_allclose(found, probabilities, atol=1e-5)
    assert not any("truncated" in answer for answer in answers)
    stored = map(json.loads, (result.path / "predictions" / "dev.jsonl").read_text().splitlines())
    assert list(stored) == [{"id": answer["id"], "prediction": answer["prediction"]} for answer in answers[:-1]]
    served = ServedModel()
    served.load_context(SimpleNamespace(artifacts={ARTIFACT: result.path}))
    assert served.predict(None, pd.DataFrame(inputs)) == answers
