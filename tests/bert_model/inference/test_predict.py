"""Predictions for plain input of every task, by one model or an ensemble; errors name the line of bad input."""

import dataclasses
import io
import json
import shutil

import numpy as np
import pytest
import tiny_tasks
import torch

from bert_model.cli import main
from bert_model.finetuning.decode import span_answers
from bert_model.finetuning.encode import encode_examples
from bert_model.finetuning.finetune import finetune
from bert_model.finetuning.task_model import load_task_model
from bert_model.finetuning.worker_pool import WorkerPool
from bert_model.inference.inputs import read_inputs
from bert_model.inference.predict import TaskPredictor, load_predictor, predict
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.tasks.task import get_task

INPUTS = {
    "sst2": "the film was lovely .\n",
    "stsb": "the film was lovely .\ta song .\n",
    "mnli": '{"text": "the film was lovely .", "text_b": "a song ."}\n',
    "squad2": "where does anna live ?\tBoris was in Oslo. Anna lives in Rome.\n",
    "swag": "anna lives .\tthe film was dull .\tthe film was great .\tthe meal was sour .\tthe song was bleak .\n",
    "ner": "Anna lives in Oslo.\n",
    "ner_features": '{"words": ["Anna", "lives", "in", "Oslo", "."]}\n',
}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    base = tiny_tasks.make_model(root / "base")
    found = {"base": base}
    with WorkerPool(num_workers=0) as pool:
        for name in INPUTS:
            config = tiny_tasks.configuration()
            finetune(tiny_tasks.task_data(name), base, root / name, config, pool=pool, experiment="")
            found[name] = root / name
        config = tiny_tasks.configuration(seeds=[2])
        for name, task in (("second", "sst2"), ("squad2 again", "squad2")):
            finetune(tiny_tasks.task_data(task), base, root / name, config, pool=pool, experiment="")
            found[name] = root / name
    return found


def answers_to(task, models, text, tmp_path):
    source, target = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text(text, encoding="utf-8")
    count = predict(task, models, str(source), str(target))
    answers = [json.loads(line) for line in target.read_text().splitlines()]
    assert count == len(answers)
    return answers


@pytest.mark.parametrize("name", sorted(INPUTS))
def test_plain_input_is_answered(name, models, tmp_path):
    (answer,) = answers_to(name, [models[name]], INPUTS[name], tmp_path)
    expected = {
        "classification": {"label", "probabilities"},
        "regression": {"score"},
        "span": {"answer", "start", "probability", "n_best", "null_odds", "null_threshold"},
        "choice": {"ending", "text", "probabilities"},
        "tagging": {"words", "tags", "probabilities", "entities"},
    }[get_task(name).kind]
    assert set(answer) == expected


def test_answers_are_right_and_their_probabilities_sum_to_one(models, tmp_path):
    text = "the film was lovely .\nthe meal was sour .\n"
    good, bad = answers_to("sst2", [models["sst2"]], text, tmp_path)
    labels = get_task("sst2").labels
    assert (good["label"], bad["label"]) == (labels[0], labels[1])  # in the hand-made data even numbers are good
    assert sum(good["probabilities"].values()) == pytest.approx(1, abs=1e-5)


def test_answer_text_is_at_its_offset_in_the_context(models, tmp_path):
    (answer,) = answers_to("squad2", [models["squad2"]], INPUTS["squad2"], tmp_path)
    context = INPUTS["squad2"].split("\t")[1]
    best = answer["n_best"][0]
    assert context[best["start"] : best["start"] + len(best["text"])] == best["text"]


def test_entities_are_named_with_their_words(models, tmp_path):
    (answer,) = answers_to("ner", [models["ner"]], INPUTS["ner"], tmp_path)
    assert answer["words"] == ["Anna", "lives", "in", "Oslo", "."]
    assert {(entity["type"], entity["text"]) for entity in answer["entities"]} == {("PER", "Anna"), ("LOC", "Oslo")}


def test_conll_columns_are_read_as_documents(models, tmp_path):
    text = "-DOCSTART- -X- O O\n\nAnna NNP I-NP O\nlives VBZ I-VP O\n\nBoris NNP I-NP O\n"
    answers = answers_to("ner", [models["ner"]], text, tmp_path)
    assert [answer["words"] for answer in answers] == [["Anna", "lives"], ["Boris"]]


def test_conll_sentence_belongs_to_the_document_mark_before_it():
    lines = ["-DOCSTART- O", "Anna O", "-DOCSTART- O", "", "Boris O"]  # the first sentence ends without a blank line
    found = list(read_inputs(lines, "tagging", "here"))
    assert found == [{"words": ("Anna",), "document": 0}, {"words": ("Boris",), "document": 1}]


def test_ensemble_averages_probabilities(models, tmp_path):
    one, two, both = (
        answers_to("sst2", chosen, INPUTS["sst2"], tmp_path)[0]["probabilities"]["0"]
        for chosen in ([models["sst2"]], [models["second"]], [models["sst2"], models["second"]])
    )
    assert one != two
    assert both == pytest.approx((one + two) / 2, abs=2e-6)


def test_squad_ensemble_averages_logits_and_thresholds(models, tmp_path):
    pair = [load_task_model(models[name], "squad2") for name in ("squad2", "squad2 again")]
    thresholds = [model.facts["null_threshold"] for model in pair]
    examples = tiny_tasks.task_data("squad2").dev["dev"]
    encoded = encode_examples(pair[0].task, examples, pair[0].tokenizer, pair[0].config)
    one, other = (model.logits(encoded) for model in pair)
    assert not np.allclose(one, other, atol=0.1)
    expected = span_answers(examples, encoded, (one + other) / 2)
    text = "".join(f"{e.question}\t{e.context}\n" for e in examples)
    answers = answers_to("squad2", [models["squad2"], models["squad2 again"]], text, tmp_path)
    for example, answer in zip(examples, answers, strict=True):
        mean = expected[example.example_id]
        assert answer["null_threshold"] == pytest.approx(np.mean(thresholds), abs=1e-5)
        assert answer["null_odds"] == pytest.approx(mean.null_odds, abs=1e-3)
        assert answer["answer"] == (mean.best.text if mean.null_odds <= np.mean(thresholds) else "")


def test_squad_ensemble_of_different_windows_is_refused(models):
    model = load_task_model(models["squad2"], "squad2")
    other = dataclasses.replace(model, config=dataclasses.replace(model.config, doc_stride=8))
    with pytest.raises(UsageError, match="must share vocabulary, max_seq_length, doc_stride"):
        TaskPredictor([model, other])


def test_hub_model_is_loaded_from_the_cache_without_network(models, tmp_path, monkeypatch, capsys):
    cached = tmp_path / "cache" / "models--someone--sentiment"
    commit = "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(models["sst2"], cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    (expected,) = answers_to("sst2", [models["sst2"]], INPUTS["sst2"], tmp_path)
    command = ["predict", "sst2", "--input", str(tmp_path / "in.txt"), "--model"]
    assert main([*command, "someone/sentiment"]) == 0
    assert json.loads(capsys.readouterr().out) == expected
    assert main([*command, "someone/else"]) == 2
    assert "someone/else: no such directory, and the Hugging Face hub did not return" in capsys.readouterr().err


@pytest.mark.parametrize("name", sorted(INPUTS))
def test_ensemble_of_a_model_with_itself_answers_as_the_model_alone(name, models, tmp_path):
    (alone,) = answers_to(name, [models[name]], INPUTS[name], tmp_path)
    (twice,) = answers_to(name, [models[name]] * 2, INPUTS[name], tmp_path)
    assert alone == twice


def test_mlm_fills_every_mask_with_ranked_candidates(models, tmp_path):
    (answer,) = answers_to("mlm", [models["base"]], "the [MASK] was [MASK] .\n", tmp_path)
    assert len(answer["masks"]) == 2
    for candidates in answer["masks"]:
        probabilities = [candidate["probability"] for candidate in candidates]
        assert probabilities == sorted(probabilities, reverse=True)
    assert "[MASK]" not in answer["text"]


def test_next_sentence_gives_both_probabilities(models, tmp_path):
    (answer,) = answers_to("nsp", [models["base"]], "the film .\tit was fine .\n", tmp_path)
    assert answer["probabilities"]["is_next"] + answer["probabilities"]["random"] == pytest.approx(1, abs=1e-5)
    assert answer["is_next"] is (answer["probabilities"]["is_next"] >= 0.5)


def test_standard_streams_are_read_and_written(models, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO(INPUTS["sst2"] * 3))
    assert predict("sst2", [models["sst2"]]) == 3
    assert len(capsys.readouterr().out.splitlines()) == 3


def test_batching_does_not_change_answers(models):
    predictor = load_predictor("sst2", [models["sst2"]])
    records = [{"text": f"the {noun} was {word} ."} for noun in tiny_tasks.NOUNS for word in ("fine", "dull and sour")]
    alone = [predictor.answer([record])[0]["probabilities"]["0"] for record in records]
    together = [answer["probabilities"]["0"] for answer in predictor.answer(records)]
    np.testing.assert_allclose(alone, together, atol=3e-6)


@pytest.mark.parametrize("task", ["sst2", "ner_features", "mlm"])
def test_models_are_put_on_the_gpu_where_there_is_one(task, models, monkeypatch):
    moved = []
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.nn.Module.to", lambda module, device: moved.append(torch.device(device)) or module)
    load_predictor(task, [models.get(task, models["base"])])
    assert moved == [torch.device("cuda")] * (2 if task == "ner_features" else 1)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
@pytest.mark.parametrize("task", ["sst2", "squad2", "ner", "ner_features", "mlm", "nsp"])
def test_gpu_and_cpu_give_the_same_answers(task, models, monkeypatch):
    record = {"nsp": {"text": "the film .", "text_b": "it was fine ."}, "mlm": {"text": "the [MASK] ."}}.get(task)
    if record is None:
        record = next(read_inputs([INPUTS[task]], load_predictor(task, [models[task]]).form, "here"))
    directory = models.get(task, models["base"])
    (on_gpu,) = load_predictor(task, [directory]).answer([record])
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    (on_cpu,) = load_predictor(task, [directory]).answer([record])
    assert _without_numbers(on_gpu) == _without_numbers(on_cpu)


def _without_numbers(value):
    if isinstance(value, dict):
        return {key: _without_numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_numbers(item) for item in value[:1]]
    return None if isinstance(value, float) else value


@pytest.mark.parametrize(
    ("task", "text", "message"),
    [
        ("mnli", "the film\n\nthe film\n", r"in.txt:1: 1 tab-separated fields, expected text and text_b"),
        ("mnli", 'a\tb\n{"text": "a"}\n', r"in.txt:2: found text, expected text and text_b; text_b is missing"),
        ("sst2", "{broken\n", r"in.txt:1: not valid JSON"),
        ("sst2", '{"text": 3}\n', r"text is 3, expected a text"),
        ("swag", "a\tb\n", r"expected a context and two or more endings"),
    ],
)
def test_bad_input_names_its_line_and_leaves_no_output(task, text, message, models, tmp_path):
    with pytest.raises(InputError, match=message):
        answers_to(task, [models[task]], text, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_mlm_without_a_mask_is_refused(models, tmp_path):
    with pytest.raises(InputError, match=r"no \[MASK\] in 'the film'"):
        answers_to("mlm", [models["base"]], "the film\n", tmp_path)


def test_model_of_another_task_is_refused(models):
    with pytest.raises(UsageError, match="was fine-tuned for sst2, not for rte"):
        load_predictor("rte", [models["sst2"]])


def test_pretrained_model_without_a_head_for_the_task_is_refused(models):
    with pytest.raises(UsageError, match="without a head for sst2"):
        load_predictor("sst2", [models["base"]])
    with pytest.raises(UsageError, match="has no head for mlm"):
        load_predictor("mlm", [models["sst2"]])


def foreign(models, tmp_path, labels):
    """The MNLI model as someone else would publish it, its outputs named by them."""
    directory = tmp_path / "foreign"
    shutil.copytree(models["mnli"], directory)
    (directory / "task.json").unlink()
    config = json.loads((directory / "config.json").read_text())
    config["id2label"] = {str(index): label for index, label in enumerate(labels)}
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def test_labels_of_a_foreign_head_are_taken_in_its_own_order(models, tmp_path):
    directory = foreign(models, tmp_path, ("ENTAILMENT", "NEUTRAL", "CONTRADICTION"))
    ours, theirs = (
        load_predictor("mnli", [model]).answer([{"text": "the film was lovely .", "text_b": "a song ."}])[0]
        for model in (models["mnli"], directory)
    )
    named = dict(zip(("contradiction", "entailment", "neutral"), ("entailment", "neutral", "contradiction")))
    assert theirs["label"] == named[ours["label"]]
    assert theirs["probabilities"] == {named[label]: value for label, value in ours["probabilities"].items()}


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (("yes", "no"), "its head has 2 outputs, mnli has 3 labels"),
        (("yes", "no", "neutral"), "its head answers yes, no, neutral, expected the labels of mnli: contradiction"),
    ],
)
def test_labels_that_are_not_the_tasks_are_refused(models, tmp_path, labels, message):
    with pytest.raises(InputError, match=message):
        load_predictor("mnli", [foreign(models, tmp_path, labels)])


def test_missing_input_file_is_named(models, tmp_path):
    with pytest.raises(InputError, match="nowhere.txt: cannot be read"):
        predict("sst2", [models["sst2"]], str(tmp_path / "nowhere.txt"))
