"""A tagger with default settings learns from a small set, and its score is that of its use."""

import dataclasses
import json
import math
import random

import numpy as np
import pytest
import tiny_tasks
import torch
import transformers

from bert_model.cli import main
from bert_model.finetuning.config import task_configuration, with_epochs
from bert_model.finetuning.finetune import finetune
from bert_model.inference.predict import answer_inputs, load_predictor
from bert_model.metrics.ner import score_tags
from bert_model.registry.model_card import write_readme
from bert_pipeline.errors import UsageError
from bert_pipeline.tasks.example import TaggedExample
from bert_pipeline.tasks.ner import DOCUMENT_MARK
from bert_pipeline.tasks.task import load_task_data

RATE = 2e-3
"""For a model of random weights; all other settings of the tests of defaults are the defaults."""


def sentence(random):
    """Return words and IOB1 tags: the same names are persons or places, by the words around them."""
    name, other, third = random.sample((*tiny_tasks.NAMES, *tiny_tasks.PLACES), 3)
    opening = random.choice(((), ("the", "film", "and"), ("a", "story", ".")))
    words, tags = random.choice(
        (
            ((name, "lives", "in", other, "."), ("I-PER", "O", "O", "I-LOC", "O")),
            (("where", "does", name, "live", "?"), ("O", "O", "I-PER", "O", "O")),
            ((name, other, "was", "in", third, "."), ("I-PER", "I-PER", "O", "O", "I-LOC", "O")),
            (("the", "song", "was", random.choice(tiny_tasks.GOOD)), ("O", "O", "O", "O")),
        )
    )
    return (*opening, *words), (*("O",) * len(opening), *tags)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """CoNLL's files of 300 and 100 sentences in four columns, without marks of documents."""
    folder, numbers = tmp_path_factory.mktemp("conll"), random.Random(1)
    for file, count in (("eng.train", 300), ("eng.testa", 100)):
        lines = ("".join(f"{word} X X {tag}\n" for word, tag in zip(*sentence(numbers))) for _ in range(count))
        (folder / file).write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_tasks.make_model(tmp_path_factory.mktemp("model") / "tiny", max_position_embeddings=512)


def plain_loop(model, data, *, steps, batch_size=16, rate=RATE):
    """Fine-tune by transformers' classes and torch's AdamW, a sentence a row; return the dev F1."""
    labels = data.task.labels
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    torch.manual_seed(1)
    tagger = transformers.AutoModelForTokenClassification.from_pretrained(model, num_labels=len(labels))

    def encode(examples):
        batch = tokenizer(
            [list(e.words) for e in examples], is_split_into_words=True, padding=True, return_tensors="pt"
        )
        targets = torch.full_like(batch["input_ids"], -100)
        for row, example in enumerate(examples):
            places = batch.word_ids(row)
            for place, word in enumerate(places):
                if word is not None and places[place - 1] != word:
                    targets[row, place] = labels.index(example.tags[word])
        return batch, targets

    optimizer = torch.optim.AdamW(tagger.parameters(), lr=rate, weight_decay=0.01)
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, steps // 10, steps)
    order = np.random.default_rng(1)
    tagger.train()
    done = 0
    while done < steps:
        shuffled = order.permutation(len(data.train))
        for start in range(0, len(shuffled), batch_size):
            batch, targets = encode([data.train[index] for index in shuffled[start : start + batch_size]])
            tagger(**batch, labels=targets).loss.backward()
            torch.nn.utils.clip_grad_norm_(tagger.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            done += 1
            if done == steps:
                break

    tagger.eval()
    examples = data.dev["dev"]
    batch, targets = encode(examples)
    with torch.no_grad():
        chosen = tagger(**batch).logits.argmax(-1)
    predicted = [
        [labels[index] for index in row[places != -100].tolist()] for row, places in zip(chosen, targets, strict=True)
    ]
    return score_tags([e.tags for e in examples], predicted)["f1"]


def test_300_sentences_with_defaults_learn_as_well_as_a_plain_loop_of_as_many_steps(files, model, tmp_path, pool):
    data = load_task_data("ner", files)
    assert len(data.train) == 300
    config = task_configuration("ner", {"learning_rates": [RATE], "seeds": [1]})
    result = finetune(data, model, tmp_path / "out", config, pool=pool, experiment="")
    steps = result.results["initializations"]["pretrained"]["steps"]
    assert 300 <= steps < 400
    found, plain = result.metrics["ner/dev/f1"]["mean"], plain_loop(model, data, steps=steps)
    assert plain > 40, "the loop of comparison learns"
    assert found >= 0.8 * plain


def test_epochs_follow_the_size_of_a_small_set_unless_they_are_given():
    config = task_configuration("ner")
    for size in (1, 10, 300, 2023):
        (epochs,) = with_epochs(config, size).epochs
        assert math.ceil(size / 16) * epochs >= 300
    assert with_epochs(config, 14_041).epochs == (3.0,)
    assert with_epochs(task_configuration("ner", {"epochs": [2, 4]}), 10).epochs == (2.0, 4.0)
    assert with_epochs(task_configuration("cola"), 10).epochs == (3.0,)  # the paper's, also for a small set


def test_too_few_steps_are_said(tmp_path, caplog):
    model = tiny_tasks.make_model(tmp_path / "tiny")
    tiny_tasks.tune("sst2", model, tmp_path / "few")
    message = "sst2: 36 optimizer steps (48 examples, batch 8, 6 epochs) are too few to fine-tune well, expected 100"
    assert message in caplog.text
    caplog.clear()
    result = tiny_tasks.tune("sst2", model, tmp_path / "more", epochs=[])
    assert result.results["winner"]["steps"] == 300
    assert "too few" not in caplog.text


# --- the context of documents ---


def data_of_documents(name):
    """Documents of two sentences; the first tells whether the name in the second is a person's or a place's."""

    def examples(count):
        for document in range(count):
            is_person = document % 3 == 0
            name, opening = tiny_tasks.PLACES[document % 4], ("story" if is_person else "meal",)
            yield TaggedExample(str(2 * document), document, opening, ("O",))
            tags = ("B-PER" if is_person else "B-LOC", "O")
            yield TaggedExample(str(2 * document + 1), document, (name, "."), tags)

    return dataclasses.replace(tiny_tasks.task_data(name), train=[*examples(60)], dev={"dev": [*examples(24)]})


@pytest.fixture(scope="module")
def in_documents(tmp_path_factory):
    """A tagger of documents with three seeds, and its data."""
    folder = tmp_path_factory.mktemp("documents")
    model = tiny_tasks.make_model(folder / "tiny")
    data = data_of_documents("ner")
    settings = {"document_context": True, "seeds": [1, 2, 3], "batch_sizes": [4]}
    return tiny_tasks.tune(data, model, folder / "out", **settings), data


def test_a_tagger_of_documents_has_both_scores_and_is_chosen_by_that_of_its_use(in_documents):
    result, data = in_documents
    examples = data.dev["dev"]
    assert {f"ner/dev/{metric}{suffix}" for metric in data.task.metrics for suffix in ("", "_with_context")} == set(
        result.metrics
    )
    assert result.main_key == "ner/dev/f1"
    runs = [run["scores"]["dev"] for run in result.results["initializations"]["pretrained"]["runs"]]
    assert result.results["winner"]["scores"]["dev"]["f1"] == max(scores["f1"] for scores in runs)
    assert all(scores["f1"] + 10 < scores["f1_with_context"] for scores in runs)

    # Texts and requests are sentences; a request, or a file, with documents has the other score.
    predictor = load_predictor("ner", [result.path])
    inputs = [{"words": example.words} for example in examples]
    alone = answer_inputs(predictor, inputs)
    together = answer_inputs(predictor, [{**item, "document": e.document} for item, e in zip(inputs, examples)])
    for answers, metric in ((alone, "f1"), (together, "f1_with_context")):
        scores = score_tags([e.tags for e in examples], [answer["prediction"] for answer in answers])
        assert scores["f1"] == pytest.approx(result.results["winner"]["scores"]["dev"][metric])
    stored = [json.loads(line) for line in (result.path / "predictions" / "dev.jsonl").read_text().splitlines()]
    assert [line["prediction"] for line in stored] == [answer["prediction"] for answer in alone]


def test_results_and_card_say_which_score_is_which(in_documents):
    result, _ = in_documents
    write_readme(result.path)
    readme = (result.path / "README.md").read_text()
    for text in (result.results["note"], (result.path / "results.md").read_text(), readme):
        assert "Metrics with '_with_context' read each sentence among its neighbors in the document" in text
    assert "type: f1_with_context" not in readme  # no metric of the hub


def test_feature_based_tagger_of_documents_has_both_scores(tmp_path):
    model = tiny_tasks.make_model(tmp_path / "tiny")
    data = data_of_documents("ner_features")
    result = tiny_tasks.tune(data, model, tmp_path / "out", document_context=True, batch_sizes=[4])
    scores = result.results["winner"]["scores"]["dev"]
    assert scores["accuracy"] != scores["accuracy_with_context"]
    alone = answer_inputs(load_predictor("ner_features", [result.path]), [{"words": e.words} for e in data.dev["dev"]])
    found = score_tags([e.tags for e in data.dev["dev"]], [answer["prediction"] for answer in alone])
    assert found["accuracy"] == pytest.approx(scores["accuracy"])


def test_without_context_a_file_with_documents_is_answered_as_its_sentences_are(tmp_path):
    model = tiny_tasks.make_model(tmp_path / "tiny")
    data = tiny_tasks.task_data("ner")
    result = tiny_tasks.tune(data, model, tmp_path / "out", epochs=[1.0])
    assert "note" not in result.results
    file = tmp_path / "dev.conll"
    blocks = []
    for example in data.dev["dev"]:
        blocks.append(f"{DOCUMENT_MARK} O\n")
        blocks.append("".join(f"{word}\t{tag}\n" for word, tag in zip(example.words, example.tags)))
    file.write_text("\n".join(blocks))
    answers = tmp_path / "answers.jsonl"
    main(["predict", "ner", "--model", str(result.path), "--input", str(file), "--output", str(answers)])
    predicted = [json.loads(line)["prediction"] for line in answers.read_text().splitlines()]
    scores = score_tags([e.tags for e in data.dev["dev"]], predicted)
    assert scores["f1"] == pytest.approx(result.metrics["ner/dev/f1"]["best"], abs=1e-5)


def test_context_that_no_file_has_is_said_and_sentences_are_read(tmp_path, caplog):
    model = tiny_tasks.make_model(tmp_path / "tiny")
    data = tiny_tasks.task_data("ner")
    without = [dataclasses.replace(example, document=None) for example in data.train]
    data = dataclasses.replace(data, train=without, dev={"dev": without[:24]})
    result = tiny_tasks.tune(data, model, tmp_path / "out", document_context=True)
    assert result.manifest.counts["train_rows"] == len(without)
    assert "ner/dev/f1_with_context" not in result.metrics
    assert "ner: train has no -DOCSTART- and no `document`, so its rows have one sentence" in caplog.text


def test_context_of_a_task_without_documents_is_refused(capsys):
    words = ["finetune", "sst2", "document_context=true", "--data", "d", "--model", "m", "--output", "o"]
    assert main(words) == UsageError.exit_code
    assert "document_context has no effect, expected it with tagging only" in capsys.readouterr().err
