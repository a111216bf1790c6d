"""Predictions for plain input and task files, by one model or an ensemble; bad rows are named and set aside."""

import csv
import dataclasses
import io
import itertools
import json
import os
import shutil
import threading
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sentencex
import tiny_tasks
import torch

from bert_model.cli import main
from bert_model.finetuning.task_model import load_task_model
from bert_model.inference.inputs import input_row, read_rows
from bert_model.inference.predict import TaskPredictor, answer_file, answer_inputs, load_predictor, predict
from bert_model.kinds import KINDS, Kind, kind_of
from bert_model.kinds.encoded import token_windows
from bert_model.kinds.scores import score_files
from bert_model.kinds.span import span_answers
from bert_model.kinds.tagging import entities
from bert_model.metrics.ner import chunks
from bert_model.model.bert import BertForPreTraining
from bert_model.model.config import BertConfig
from bert_model.model.heads import HEAD_CLASSES
from bert_model.model.initialization import new_model
from bert_model.model.weights import load_model, save_model
from bert_pipeline.configuration import to_mapping
from bert_pipeline.errors import InputError, UsageError
from bert_pipeline.records import Record
from bert_pipeline.storage import to_path
from bert_pipeline.tasks.catalogue import Columns, get_task
from bert_pipeline.tasks.ner import to_iob2
from bert_pipeline.tasks.task import read_examples
from bert_pipeline.vocabulary.tokenizer import Tokenizer

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
    for name in (*INPUTS, "squad1"):
        found[name] = tiny_tasks.tune(name, base, root / name).path
    for name, task in (("second", "sst2"), ("squad2 again", "squad2")):
        found[name] = tiny_tasks.tune(task, base, root / name, seeds=[2]).path
    # Its next-sentence head has had gradients.
    found["nsp"] = root / "nsp"
    found["nsp"].mkdir()
    model, _ = load_model(BertForPreTraining, base)
    with torch.no_grad():
        model.cls.seq_relationship.bias.fill_(0.1)
    save_model(model, found["nsp"], tiny_tasks.tokenizer())
    return found


def standard_input(text):
    return io.TextIOWrapper(io.BytesIO(text.encode()))


def answers_to(task, models, text, tmp_path, **options):
    source, target = tmp_path / "in.txt", tmp_path / "out.jsonl"
    source.write_text(text, encoding="utf-8")
    counts = predict(task, models, str(source), str(target), **options)
    answers = [json.loads(line) for line in target.read_text().splitlines()]
    assert (counts.lines, counts.rejected) == (len(answers), 0)
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
    assert set(answer) == {"id", "prediction"} | expected
    assert list(answer)[:2] == ["id", "prediction"]


def test_answers_are_right_and_their_probabilities_sum_to_one(models, tmp_path):
    text = "the film was lovely .\nthe meal was sour .\n"
    good, bad = answers_to("sst2", [models["sst2"]], text, tmp_path)
    labels = get_task("sst2").labels
    assert (good["label"], bad["label"]) == (labels[0], labels[1])  # in the hand-made data even numbers are good
    assert sum(good["probabilities"].values()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("task", ["sst2", "mlm", "pll"])
def test_precision_of_answers_can_be_chosen(task, tmp_path):
    if task == "sst2":
        directory = untrained(tmp_path / "model", task, initializer_range=0.5)
    else:
        directory = tiny_tasks.make_model(tmp_path / "model")
    found = []
    for precision in (None, "float32", "bfloat16"):
        text = "the [MASK] was fine ." if task == "mlm" else "the film was fine ."
        (answer,) = load_predictor(task, [directory], precision).answer([{"text": text}])
        numbers = {"sst2": answer.get("probabilities"), "mlm": answer.get("masks", [[None]])[0][0], "pll": answer}[task]
        found.append([value for value in numbers.values() if isinstance(value, float)])
    assert found[0] == found[1] != found[2]
    assert found[2] == pytest.approx(found[0], rel=0.05)


def test_precision_of_frozen_features_is_refused(models):
    with pytest.raises(UsageError, match="ner_features: its frozen features are of float32; leave out --precision"):
        load_predictor("ner_features", [models["ner_features"]], "bfloat16")


def test_answer_text_is_at_its_offset_in_the_context(models, tmp_path):
    (answer,) = answers_to("squad2", [models["squad2"]], INPUTS["squad2"], tmp_path)
    context = INPUTS["squad2"].split("\t")[1]
    best = answer["n_best"][0]
    assert context[best["start"] : best["start"] + len(best["text"])] == best["text"]


def test_no_answer_has_its_own_share_among_the_candidates(models):
    predictor = load_predictor("squad2", [models["squad2"]])
    question = {"question": "where does anna live ?", "context": "Boris was in Oslo. Anna lives in Rome."}
    answers = {}
    for threshold in (-1e9, 1e9):
        predictor.fitted = {"null_threshold": threshold}
        (answers[threshold],) = predictor.answer([question])
    assert answers[-1e9]["prediction"] == ""
    assert answers[1e9]["prediction"] == answers[1e9]["n_best"][0]["text"]
    none, text = (answers[threshold]["probability"] for threshold in (-1e9, 1e9))
    # The odds of both are those of their scores; probabilities are rounded to six digits.
    assert none == pytest.approx(text * np.exp(answers[1e9]["null_odds"]), rel=1e-2, abs=2e-6)
    assert none + text <= 1


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        (["O", "I", "I"], [(1, 3)]),
        (["I", "O", "B", "I", "B"], [(0, 1), (2, 4), (4, 5)]),
        (["B", "O", "I"], [(0, 1), (2, 3)]),
    ],
)
def test_entities_of_tags_without_types_are_conllevals(tags, expected):
    found = entities(["a"] * len(tags), tags)
    assert [(entity["start_word"], entity["end_word"]) for entity in found] == expected
    assert chunks(tags) == {(start, end, "") for start, end in expected}


def test_entities_are_named_with_their_words(models, tmp_path):
    (answer,) = answers_to("ner", [models["ner"]], INPUTS["ner"], tmp_path)
    assert answer["words"] == ["Anna", "lives", "in", "Oslo", "."]
    assert {(entity["type"], entity["text"]) for entity in answer["entities"]} == {("PER", "Anna"), ("LOC", "Oslo")}


def test_conll_columns_are_read_as_documents(models, tmp_path):
    text = "-DOCSTART- -X- O O\n\nAnna NNP I-NP O\nlives VBZ I-VP O\n\nBoris NNP I-NP O\n"
    answers = answers_to("ner", [models["ner"]], text, tmp_path)
    assert [answer["words"] for answer in answers] == [["Anna", "lives"], ["Boris"]]


@pytest.mark.parametrize(
    "text",
    [
        "Anna NNP I-NP O\nlives VBZ I-VP O\n\nBoris NNP I-NP B-PER\n",  # no document mark
        "Anna NNP B-person\nlives VBZ O\n\nBoris NNP B-person\n",  # tags of another scheme, which are not read
        "-DOCSTART-\n\nAnna\nlives\n\nBoris\n",
    ],
)
def test_conll_columns_are_no_sentences_of_words_and_tags(text, models, tmp_path):
    answers = answers_to("ner", [models["ner"]], text, tmp_path)
    assert [(answer["id"], answer["words"]) for answer in answers] == [("0", ["Anna", "lives"]), ("1", ["Boris"])]


def test_bad_sentence_of_conll_columns_is_set_aside(models, tmp_path):
    (tmp_path / "in.txt").write_text("Anna NNP O\nlives O\n\nBoris NNP B-PER\nlives VBZ O\n\nClara NNP B-PER\n")
    counts = predict("ner", [models["ner"]], str(tmp_path / "in.txt"), str(tmp_path / "out.jsonl"))
    assert (counts.answers, counts.rejected) == (2, 1)
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [(answer["id"], answer["words"]) for answer in answers] == [("1", ["Boris", "lives"]), ("2", ["Clara"])]


def test_conll_sentence_belongs_to_the_document_mark_before_it(tmp_path):
    # The first sentence ends without a blank line.
    (tmp_path / "in.txt").write_text("-DOCSTART- O\nAnna O\n-DOCSTART- O\n\nBoris O\n")
    found = [row.fields for row in read_rows(str(tmp_path / "in.txt"), "tagging", get_task("ner"))]
    assert found == [
        {"id": "0", "words": ("Anna",), "document": 0},
        {"id": "1", "words": ("Boris",), "document": 1},
    ]


def test_ensemble_averages_probabilities(models, tmp_path):
    one, two, both = (
        answers_to("sst2", chosen, INPUTS["sst2"], tmp_path)[0]["probabilities"]["0"]
        for chosen in ([models["sst2"]], [models["second"]], [models["sst2"], models["second"]])
    )
    assert one != two
    assert both == pytest.approx((one + two) / 2, abs=2e-6)


def test_squad_ensemble_averages_logits_and_thresholds(models, tmp_path):
    pair = [load_task_model(models[name], "squad2") for name in ("squad2", "squad2 again")]
    thresholds = [model.description["null_threshold"] for model in pair]
    examples = tiny_tasks.task_data("squad2").dev["dev"]
    encoded = kind_of(pair[0].task).encode(examples, pair[0].tokenizer, pair[0].config)
    one, other = (model.logits(encoded) for model in pair)
    assert not np.allclose(one, other, atol=0.1)
    expected = span_answers(examples, encoded, (one + other) / 2, pair[0].config)
    text = "".join(f"{e.question}\t{e.context}\n" for e in examples)
    answers = answers_to("squad2", [models["squad2"], models["squad2 again"]], text, tmp_path)
    for example, answer in zip(examples, answers, strict=True):
        mean = expected[example.example_id]
        assert answer["null_threshold"] == pytest.approx(np.mean(thresholds), abs=1e-5)
        assert answer["null_odds"] == pytest.approx(mean.null_odds, abs=1e-3)
        assert answer["answer"] == (mean.best.text if mean.null_odds <= np.mean(thresholds) else "")


def test_ensemble_of_other_orders_of_labels_is_refused(models):
    model = load_task_model(models["sst2"], "sst2")
    again = dataclasses.replace(model, task=dataclasses.replace(model.task, title="Another title"))
    assert TaskPredictor([model, again]).models == [model, again]
    other = dataclasses.replace(model, task=dataclasses.replace(model.task, labels=model.task.labels[::-1]))
    with pytest.raises(UsageError, match="sst2: .* labels of its models must have the same order; found 0, 1 and 1, 0"):
        TaskPredictor([model, other])


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


def test_pll_is_the_sum_of_each_tokens_log_probability_when_it_is_masked(models, tmp_path):
    text = "the film was fine .\nthe film .\n"
    answer, other = answers_to("pll", [models["base"]], text, tmp_path, tokens=True)
    numbers = answers_to("pll", [models["base"]], text, tmp_path)
    assert numbers == [{"id": own["id"], "prediction": own["prediction"]} for own in (answer, other)]
    with pytest.raises(UsageError, match="--tokens: mlm has no score for each token, only pll has"):
        predict("mlm", [models["base"]], tokens=True)
    assert [token for token, _ in answer["tokens"]] == ["the", "film", "was", "fine", "."]
    assert answer["prediction"] == pytest.approx(sum(score for _, score in answer["tokens"]), abs=1e-4)
    model, _ = load_model(BertForPreTraining, models["base"], log=False)
    tokenizer = Tokenizer.from_directory(models["base"])
    ids = torch.tensor([[tokenizer.cls_id, *tokenizer.encode("the film was fine ."), tokenizer.sep_id]])
    for position, (_, score) in enumerate(answer["tokens"], start=1):
        masked = ids.clone()
        masked[0, position] = tokenizer.mask_id
        with torch.inference_mode():
            logits = model.eval()(masked).prediction_logits[0, position]
        assert score == pytest.approx(float(logits.log_softmax(0)[ids[0, position]]), abs=1e-4)


def test_next_sentence_gives_both_probabilities(models, tmp_path):
    (answer,) = answers_to("nsp", [models["nsp"]], "the film .\tit was fine .\n", tmp_path)
    assert answer["probabilities"]["is_next"] + answer["probabilities"]["random"] == pytest.approx(1, abs=1e-5)
    assert answer["is_next"] is (answer["probabilities"]["is_next"] >= 0.5)


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
        record = {
            "sst2": {"text": "the film was lovely ."},
            "squad2": {"question": "where does anna live ?", "context": "Anna lives in Rome."},
        }.get(task, {"text": "Anna lives in Oslo."})
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
        ("sst2", '{"text": 3}\n', r"in.txt:1: text is 3, expected a text"),
        ("sst2", '{"text": "cut\n', r"in.txt:1: not valid JSON"),
        ("swag", "a\tb\n", r"in.txt:1: endings is \['b'\], expected a list of two or more texts"),
        ("sst2", '{"text": "a", "id": 1.5}\n', r"id is 1.5, expected a text or a whole number"),
        # Files of other tasks and of no task, whose parts must not be taken for texts.
        ("sst2", "7\tthe film was lovely .\n", r"in.txt:1: 2 tab-separated fields, expected text"),
        ("mnli", "sentence\tlabel\nthe film\t1\n", r"found the columns sentence, label, expected text and text_b"),
        ("sst2", "sentence1,sentence2,label\na,b,1\n", r"found the columns sentence1, sentence2, label"),
        ("sst2", ",video-id,sent1,sent2,ending0\n0,v,a,b,c\n", r"found the columns , video-id, sent1"),
        ("sst2", "Anna NNP B-PER\nlives VBZ O\n", r"found CoNLL's columns, expected text"),
        ("sst2", "-DOCSTART-\n\nAnna\n", r"found CoNLL's columns"),
        ("ner", "Anna\nlives\n\nBoris\n", r"found one word a line; begin the file with a line -DOCSTART-"),
        ("sst2", '{\n "version": "1.1",\n "data": []\n}', r"in.txt:1: found one JSON document, expected JSON lines"),
        ("sst2", '{"version": "1.1", "data": []}\n', r"found version, data, expected text"),
        ("sst2", '[{"other": "the film"}, {"other": "a song"}]', r"in.txt:1: found the columns other, expected text"),
        (
            "swag",
            '{"context": "a", "endings": {"text": ["b", "c"]}}\n',
            r"endings is .*, expected a list of two or more",
        ),
        ("swag", '{"context": "a", "endings": 5}\n', r"endings is 5, expected a list of two or more texts"),
        ("squad1", "index\tsentence\n0\tthe film\n", r"found the columns index, sentence"),
        ("nsp", "sentence1\tsentence2\na\tb\n", r"found the columns sentence1, sentence2"),
        ("mlm", "the film\n", r"in.txt:1: mlm: no \[MASK\] in 'the film'"),
    ],
)
def test_file_that_is_no_input_is_refused_and_leaves_no_output(task, text, message, models, tmp_path):
    with pytest.raises(InputError, match=message):
        answers_to(task, [models.get(task, models["base"])], text, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_pipe_is_read_once_and_whole():
    lines = [f"text {number} {'x' * 1000}\n" for number in range(4000)]  # more than the heads that decide
    for header in ([], ["sentence\tlabel\n"]):
        reading, writing = os.pipe()

        def write(descriptor=writing, header=header):
            with os.fdopen(descriptor, "w") as stream:
                stream.writelines(header)
                stream.writelines(f"{line[:-1]}\t1\n" if header else line for line in lines)

        writer = threading.Thread(target=write)
        writer.start()
        texts = [row.fields["text"] for row in read_rows(f"/dev/fd/{reading}", "text", get_task("sst2"))]
        os.close(reading)
        writer.join()
        assert texts == [line[:-1] for line in lines]


# --- a task's own files ---


def write_official(task, examples, path):
    """Write labeled examples in the task's official format."""
    if task.kind == "span":
        path.write_text(tiny_tasks.squad_file(examples, has_impossible=task.has_impossible))
        return
    if task.kind == "choice":
        rows = [["", "video-id", "sent1", "sent2", *(f"ending{n}" for n in range(4)), "label"]]
        rows += [[e.example_id, "v", e.context, "", *e.endings, e.label] for e in examples]
        with open(path, "w", newline="") as stream:
            csv.writer(stream).writerows(rows)
        return
    if task.kind == "tagging":
        lines = ["".join(f"{w} X {t}\n" for w, t in zip(e.words, e.tags)) for e in examples]
        path.write_text("\n".join(lines))
        return
    columns = task.columns
    names = [columns.index, columns.text_a, columns.text_b, columns.label]
    rows = [names, *([e.example_id, e.text_a, e.text_b, e.label] for e in examples)]
    path.write_text("".join("\t".join(str(c) for c, name in zip(row, names) if name) + "\n" for row in rows))


OFFICIAL = {"span": "dev.json", "choice": "val.csv", "tagging": "eng.testa"}


@pytest.mark.parametrize(
    ("task_name", "split"),
    [
        ("sst2", "dev"),
        ("stsb", "dev"),
        ("mnli", "dev_matched"),
        ("mnli", "dev_mismatched"),
        ("squad1", "dev"),
        ("squad2", "dev"),
        ("swag", "dev"),
        ("ner", "dev"),
        ("ner_features", "dev"),
    ],
)
@pytest.mark.parametrize("num_models", [1, 2])
def test_score_closes_over_what_predict_writes(task_name, split, num_models, models, tmp_path):
    task = get_task(task_name)
    offset = 100 if split != "dev_mismatched" else 400
    examples = [tiny_tasks.example(task_name, offset + index) for index in range(24)]
    data, output = tmp_path / OFFICIAL.get(task.kind, f"{split}.tsv"), tmp_path / "out.jsonl"
    write_official(task, examples, data)
    directories = [models["squad2"], models["squad2 again"]] if task_name == "squad2" else [models[task_name]] * 2
    counts = predict(task_name, directories[:num_models], str(data), str(output))
    assert (counts.answers, counts.blank, counts.rejected) == (24, 0, 0)
    answers = [json.loads(line) for line in output.read_text().splitlines()]
    kept = {"span": [f"q{e.example_id}" for e in examples], "tagging": [str(n) for n in range(24)]}
    assert [answer["id"] for answer in answers] == kept.get(task.kind, [e.example_id for e in examples])

    result = score_files(task_name, data, output)
    assert (result["examples"], result["unknown"], result.get("unanswered", 0)) == (24, 0, 0)
    by_place = {e.example_id: answer["prediction"] for e, answer in zip(examples, answers)}
    assert {metric: result[metric] for metric in task.metrics} == pytest.approx(
        {
            metric: value
            for metric, value in kind_of(task_name).score(examples, by_place).items()
            if metric in task.metrics
        }
    )
    if not task.feature_based:
        assert result[task.main_metric] > 50  # learned, so a shift by one row shows
    if task_name == "squad2":
        with_odds = score_files(task_name, data, output, output)
        assert with_odds["best_f1"] >= result["f1"] - 1e-6


@pytest.mark.parametrize("layout", ["parquet", "jsonl", "csv", "arrow", "tsv"])
def test_hub_files_are_answered_with_their_ids(layout, models, tmp_path):
    columns = {"premise": ["the film was lovely .", "the meal was sour ."], "hypothesis": ["a song ."] * 2}
    table = pa.table({**columns, "label": [-1, -1], "idx": [31, 47]})
    path = tmp_path / f"test-00000-of-00001.{layout}"
    if layout == "parquet":
        pq.write_table(table, path)
    elif layout == "arrow":
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    elif layout == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        with open(path, "w", newline="") as stream:
            writer = csv.DictWriter(stream, table.column_names, delimiter="," if layout == "csv" else "\t")
            writer.writeheader()
            writer.writerows(table.to_pylist())
    predict("mnli", [models["mnli"]], str(path), str(tmp_path / "out.jsonl"))
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    plain = "the film was lovely .\ta song .\nthe meal was sour .\ta song .\n"
    expected = answers_to("mnli", [models["mnli"]], plain, tmp_path)
    assert [answer["prediction"] for answer in answers] == [answer["prediction"] for answer in expected]
    assert [answer["id"] for answer in answers] == ["31", "47"]


@pytest.mark.parametrize(
    ("name", "columns", "rows", "found"),
    [
        (
            "sst2",
            Columns(text_a="summary", index="ticket"),
            [{"ticket": "T1", "summary": "right", "text": "WRONG", "label": "1"}],
            [{"id": "T1", "text": "right"}],
        ),
        (
            "sst2",
            Columns(text_a="text"),
            [{"index": number, "text": str(number), "label": "1"} for number in (2, 0, 1)],
            [{"id": str(number), "text": str(number)} for number in (2, 0, 1)],
        ),
        (
            "mnli",
            None,
            [{"idx": 7, "premise": "a", "hypothesis": "b", "text": "c", "text_b": "d", "label": "neutral"}],
            [{"id": "7", "text": "a", "text_b": "b"}],
        ),
        (
            "ner",
            None,
            [
                {"tokens": ["U.S.", "troops"], "ner_tags": ["B-LOC", "O"], "text": "U.S. troops"},
                {"tokens": ["They"], "ner_tags": ["O"], "document": "a"},
            ],
            [{"id": "0", "words": ("U.S.", "troops"), "document": 0}, {"id": "1", "words": ("They",), "document": 1}],
        ),
        (
            "ner",
            None,
            [{"words": ["-DOCSTART-"], "tags": ["O"]}, {"words": ["U.S."], "tags": ["B-LOC"]}],
            [{"id": "0", "words": ("U.S.",), "document": 0}],
        ),
        (
            "swag",
            None,
            [{"sent1": "a", "sent2": "b", **{f"ending{n}": f"{n}" for n in range(4)}, "label": 0}
             | {"context": "c", "endings": ["d", "e"]}],
            [{"id": "0", "context": "a", "endings": ("b 0", "b 1", "b 2", "b 3")}],
        ),
        ("sst2", Columns(text_a="text"), [{"id": 5, "text": "a", "label": "1"}], [{"id": 5, "text": "a"}]),
        (
            "squad1",
            None,
            [{"id": "a", "question": "b", "context": "c", "data": 1, "answers": {"text": [], "answer_start": []}}],
            [{"id": "a", "question": "b", "context": "c"}],
        ),
    ],
    ids=["own columns", "own ids", "hub", "tokens", "tagged words", "choice", "plain", "plain span"],
)  # fmt: skip
@pytest.mark.parametrize("is_stream", [False, True])
def test_json_lines_of_the_task_are_read_as_scores_read_them(
    name, columns, rows, found, is_stream, tmp_path, monkeypatch
):
    task = get_task(name) if columns is None else dataclasses.replace(get_task(name), columns=columns)
    form = {"sst2": "text", "mnli": "pair", "ner": "tagging", "swag": "choice", "squad1": "span"}[name]
    path, text = tmp_path / "in.jsonl", "".join(json.dumps(row) + "\n" for row in rows)
    path.write_text(text)
    monkeypatch.setattr("sys.stdin", standard_input(text))
    assert [row.fields for row in read_rows("-" if is_stream else str(path), form, task)] == found
    if name != "squad1":
        assert [example.example_id for example in read_examples(task, path)] == [str(row["id"]) for row in found]


@pytest.mark.parametrize("name", ["in.tsv", "in.txt"])
def test_header_of_a_single_column_is_no_text(name, tmp_path):
    path = tmp_path / name
    path.write_text("sentence\nthe film was lovely .\n")
    found = [row.fields for row in read_rows(str(path), "text", get_task("sst2"))]
    assert found == [{"id": "0", "text": "the film was lovely ."}]
    (scored,) = read_examples(get_task("sst2"), path, labeled=False)
    assert (scored.example_id, scored.text_a) == ("0", "the film was lovely .")


def test_squad_json_is_read_from_standard_input(models, tmp_path, monkeypatch):
    examples = tiny_tasks.task_data("squad1").dev["dev"][:3]
    write_official(get_task("squad1"), examples, tmp_path / "dev.json")
    monkeypatch.setattr("sys.stdin", standard_input((tmp_path / "dev.json").read_text()))
    predict("squad1", [models["squad1"]], "-", str(tmp_path / "out.jsonl"))
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [answer["id"] for answer in answers] == [f"q{e.example_id}" for e in examples]


def test_table_of_standard_input_is_read_beyond_its_first_lines(models, tmp_path, monkeypatch):
    rows = "".join(f"r{number}\tthe film was lovely .\n" for number in range(700))
    monkeypatch.setattr("sys.stdin", standard_input("index\tsentence\n" + rows))
    assert predict("sst2", [models["sst2"]], "-", str(tmp_path / "out.jsonl")).answers == 700
    ids = [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert ids == [f"r{number}" for number in range(700)]


# --- ids, blank lines, texts that look like JSON ---


def test_blank_lines_do_not_shift_answers(models, tmp_path):
    answers = answers_to("sst2", [models["sst2"]], "the film was lovely .\n\nthe meal was sour .\n", tmp_path)
    assert [answer["id"] for answer in answers] == ["0", "1", "2"]
    assert answers[1] == {"id": "1", "prediction": None, "blank": True}
    assert [answer["prediction"] for answer in answers] == ["0", None, "1"]


def test_answers_with_blank_lines_are_scored(tmp_path):
    answers = [{"id": "0", "prediction": "0"}, {"id": "1", "prediction": None}, {"id": "2", "prediction": "1"}]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(answer) + "\n" for answer in answers))
    (tmp_path / "dev.tsv").write_text("index\tsentence\tlabel\n0\ta\t0\n2\tb\t1\n")
    result = score_files("sst2", tmp_path / "dev.tsv", tmp_path / "p.jsonl")
    assert (result["accuracy"], result["unknown"]) == (100.0, 0)


def test_ids_of_json_lines_are_kept_and_others_are_line_numbers(models, tmp_path):
    text = '{"id": "a-1", "text": "a song"}\n{"id": 17, "text": "a song"}\n{"text": "a song"}\n'
    assert [a["id"] for a in answers_to("sst2", [models["sst2"]], text, tmp_path)] == ["a-1", 17, "2"]
    given = [{"id": "x", "text": "a song", "text_b": "a film"}, {"text": "a song", "text_b": "a film"}]
    assert [a["id"] for a in answer_inputs(load_predictor("mnli", [models["mnli"]]), given)] == ["x", "1"]


@pytest.fixture
def panics(monkeypatch):
    """Make the tokenizer panic, as an extension in Rust does, for one word."""
    encode = Kind.encode

    def panicking(kind, examples, *args):
        if any("<bad>" in example.text_a for example in examples):
            sentencex.segment("en", "He lives in block B\xa0. It is far away.")
        return encode(kind, examples, *args)

    monkeypatch.setattr(Kind, "encode", panicking)


def test_row_that_panics_is_set_aside_and_the_others_are_answered(models, tmp_path, panics):
    lines = ["a song .", "the <bad> film .", "the film was lovely .", "a <bad> meal .", "a meal ."]
    (tmp_path / "in.txt").write_text("\n".join(lines))
    counts = predict("sst2", [models["sst2"]], str(tmp_path / "in.txt"), str(tmp_path / "out.jsonl"))
    assert (counts.answers, counts.rejected) == (3, 2)
    answers = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [answer["id"] for answer in answers] == ["0", "2", "4"]
    rejected = [json.loads(line) for line in (tmp_path / "out.jsonl.rejected.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rejected] == ["1", "3"]
    assert all(f"in.txt:{n}: PanicException: end byte" in row["error"] for n, row in zip((2, 4), rejected))


def test_request_answers_its_good_rows(models, panics):
    predictor = load_predictor("sst2", [models["sst2"]])
    given = [{"text": "a song ."}, {"text": None}, {"id": 7, "text": "a <bad> meal ."}, {}, {"text": "the meal ."}]
    answers = answer_inputs(predictor, given)
    assert [answer["id"] for answer in answers] == ["0", "1", 7, "3", "4"]
    (first,), (last,) = (predictor.answer([given[index]]) for index in (0, 4))
    assert answers[0] == first
    assert answers[4] == {**last, "id": "4"}
    assert answers[1] == {"id": "1", "prediction": None, "error": answers[1]["error"]}
    assert answers[1]["error"] == "input 2: found text, expected text; text is missing"
    assert answers[2]["error"].startswith("input 3: PanicException: end byte")
    assert answers[3]["error"].startswith("input 4: found nothing")
    with pytest.raises(InputError, match="input 1: found text"):
        answer_inputs(predictor, [{"text": None}])


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, torch.OutOfMemoryError])
def test_what_is_not_about_a_row_ends_the_prediction(models, tmp_path, monkeypatch, error):
    def failing(*args):
        raise error("all of it")

    monkeypatch.setattr(Kind, "encode", failing)
    (tmp_path / "in.txt").write_text("a song .\nthe meal .\n")
    with pytest.raises(error):
        predict("sst2", [models["sst2"]], str(tmp_path / "in.txt"), str(tmp_path / "out.jsonl"))
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_choices_of_different_lengths_keep_their_numbers(models, tmp_path):
    text = "anna lives .\tthe film .\tthe song .\nanna lives .\tthe film .\tthe song .\tthe meal .\n"
    assert [a["id"] for a in answers_to("swag", [models["swag"]], text, tmp_path)] == ["0", "1"]


def test_text_that_begins_with_a_brace_is_answered(models, tmp_path):
    text = "the film was lovely .\n{the song} was sour .\n{ \n{}\n"
    answers = answers_to("sst2", [models["sst2"]], text, tmp_path)
    assert [answer["id"] for answer in answers] == ["0", "1", "2", "3"]
    assert all(answer["prediction"] in ("0", "1") for answer in answers)
    (only,) = answers_to("sst2", [models["sst2"]], "{the song} was sour .\n", tmp_path)
    assert only["probabilities"] == pytest.approx(answers[1]["probabilities"], abs=1e-5)  # sums depend on the batch


# --- bad rows ---


def test_row_of_json_lines_without_its_text_is_set_aside_under_its_own_id(models, tmp_path):
    rows = [{"id": 1, "text": "a song"}, {"id": 0, "text": None}, {"id": True, "text": "a"}, {"idx": "x", "id": None}]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + "{broken\n")
    counts = predict("sst2", [models["sst2"]], str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"))
    assert (counts.answers, counts.rejected) == (1, 4)
    rejected = (tmp_path / "out.jsonl.rejected.jsonl").read_text().splitlines()
    assert [json.loads(line)["id"] for line in rejected] == [0, "2", "3", "4"]  # lines count where no id is stated


def test_second_text_is_an_error_where_one_is_expected():
    rows = [{"text": "a film", "text_b": text_b} for text_b in ("a song", "", None)]
    errors = [input_row(Record("in.jsonl:1", row), "text", 0).error for row in rows]
    assert errors == ["in.jsonl:1: found text and text_b, expected text alone; give a model for pairs", "", ""]


def test_bad_rows_are_named_and_set_aside_and_the_rest_is_answered(models, tmp_path, caplog):
    source, target = tmp_path / "in.tsv", tmp_path / "out.jsonl"
    source.write_bytes(b"a film\ta song\nonly one\n\xff\xfe\tb\na film\ta song\tmore\na meal\ta song\n")
    command = ["predict", "mnli", "--model", str(models["mnli"]), "--input", str(source), "--output", str(target)]
    assert main(command) == 1
    assert [json.loads(line)["id"] for line in target.read_text().splitlines()] == ["0", "4"]
    rejected = [json.loads(line) for line in (tmp_path / "out.jsonl.rejected.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rejected] == ["1", "2", "3"]
    assert rejected[0]["line"] == "only one"
    assert rejected[0]["error"].endswith("in.tsv:2: 1 tab-separated fields, expected text and text_b")
    assert "in.tsv:3: not UTF-8 text" in rejected[1]["error"]
    assert "3 of 5 rows are not answered" in caplog.text
    assert "in.tsv:2: 1 tab-separated fields" in caplog.text
    source.write_text("a film\ta song\n")
    assert main(command) == 0
    assert not (tmp_path / "out.jsonl.rejected.jsonl").exists()


def test_file_without_rows_is_named(models, tmp_path, caplog):
    assert answers_to("sst2", [models["sst2"]], "", tmp_path) == []
    assert f"{tmp_path / 'in.txt'}: holds no inputs" in caplog.text


def test_answers_and_rows_without_one_are_written_to_a_store(models, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source, target = tmp_path / "in.tsv", "memory://answers/out.jsonl"
    source.write_text("a film\ta song\nonly one\n")
    command = ["predict", "mnli", "--model", str(models["mnli"]), "--input", str(source), "--output", target]
    assert main(command) == 1
    assert [json.loads(line)["id"] for line in to_path(target).read_text().splitlines()] == ["0"]
    assert [json.loads(line)["id"] for line in to_path(f"{target}.rejected.jsonl").read_text().splitlines()] == ["1"]
    source.write_text("a film\ta song\n")
    assert main(command) == 0
    assert not to_path(f"{target}.rejected.jsonl").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["in.tsv"]


def test_bad_row_of_a_task_file_is_set_aside(models, tmp_path):
    (tmp_path / "test.tsv").write_text("index\tsentence\n5\ta song\n6\n7\ta film\n")
    counts = predict("sst2", [models["sst2"]], str(tmp_path / "test.tsv"), str(tmp_path / "out.jsonl"))
    assert (counts.answers, counts.rejected) == (2, 1)
    (row,) = map(json.loads, (tmp_path / "out.jsonl.rejected.jsonl").read_text().splitlines())
    assert row["error"].endswith("test.tsv:3: 1 columns, expected 2")
    ids = [json.loads(line)["id"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert ids == ["5", "7"]


def test_bad_rows_to_standard_output_are_said(models, monkeypatch, capsys, caplog):
    monkeypatch.setattr("sys.stdin", standard_input("a film\ta song\nonly one\n"))
    assert predict("mnli", [models["mnli"]]).rejected == 1
    assert len(capsys.readouterr().out.splitlines()) == 1
    assert "not answered: standard input:2: 1 tab-separated fields" in caplog.text


def test_failed_run_leaves_neither_answers_nor_rejected_rows(models, tmp_path, monkeypatch):
    (tmp_path / "in.txt").write_text("a film\ta song\nonly one\n" + "a film\ta song\n" * 600)
    predictor = load_predictor("mnli", [models["mnli"]])
    answer, calls = predictor.answer, []

    def fail_later(inputs, encoded):
        calls.append(len(inputs))
        if len(calls) > 1:
            raise RuntimeError("out of memory")
        return answer(inputs, encoded)

    monkeypatch.setattr(predictor, "answer", fail_later)
    with pytest.raises(RuntimeError):
        answer_file(predictor, str(tmp_path / "in.txt"), str(tmp_path / "out.jsonl"))
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


# --- truncation, memory ---


@pytest.mark.parametrize("task", ["sst2", "mnli", "swag", "squad2", "nsp"])
def test_truncated_inputs_are_counted_and_said(task, models, tmp_path, caplog):
    long = "the film was lovely . " * 30
    fields = {
        "sst2": (["a song ."], [long]),
        "swag": (["a song .", "the film .", "the meal ."], ["a song .", "the film .", long]),
        "squad2": (["where was anna ?", "Anna was in Rome."], [f"where was anna ? {long}", "Anna was in Rome."]),
    }.get(task, (["a song .", "a film ."], ["a song .", long]))
    (tmp_path / "in.txt").write_text("".join("\t".join(row) + "\n" for row in fields))
    counts = predict(task, [models.get(task, models["base"])], str(tmp_path / "in.txt"), str(tmp_path / "out.jsonl"))
    short, cut = (json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines())
    assert counts.truncated == 1
    assert "truncated" not in short
    assert cut["truncated"] is True
    assert "1 of 2 inputs are longer than the model reads and were cut" in caplog.text


class _Echo:
    """A predictor that answers at once."""

    form = "text"

    def __init__(self, data_task=None):
        self.data_task = data_task

    def answer(self, inputs, encoded=None):
        return [{"id": item["id"], "prediction": item["text"]} for item in inputs]


def test_input_is_read_as_answers_are_written(tmp_path, monkeypatch, capsys):
    unanswered = []

    class Lines(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, buffer):
            if len(unanswered) == 5000:
                return 0
            answered = capsys.readouterr().out.count("\n")
            unanswered.append((unanswered[-1] if unanswered else 0) + 1 - answered)
            line = f"text {len(unanswered)}\n".encode()
            buffer[: len(line)] = line
            return len(line)

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BufferedReader(Lines())))
    assert answer_file(_Echo(), "-", "-").answers == 5000
    assert max(unanswered) <= 2 * 512 + 1


def test_next_inputs_are_encoded_while_some_are_answered(models, tmp_path, monkeypatch):
    """So that a GPU has work; in the order of the input, and with the answers of each chunk alone."""
    lines = [f"the {noun} was {word} ." for noun in tiny_tasks.NOUNS for word in (*tiny_tasks.GOOD, "<bad>")] * 30
    (tmp_path / "in.txt").write_text("\n".join(lines))
    predictor, events = load_predictor("sst2", [models["sst2"]]), []
    encode, answer, encoded_next = predictor.encode, predictor.answer, threading.Event()

    def noted_encode(inputs):
        events.append(("encode", len(inputs)))
        if len(events) == 2:
            encoded_next.set()
        return encode(inputs)

    def noted_answer(inputs, encoded):
        assert encoded is not None
        assert encoded_next.wait(timeout=60)  # of both chunks, before one is answered
        events.append(("answer", len(inputs)))
        return answer(inputs, encoded)

    monkeypatch.setattr(predictor, "encode", noted_encode)
    monkeypatch.setattr(predictor, "answer", noted_answer)
    assert answer_file(predictor, str(tmp_path / "in.txt"), str(tmp_path / "out.jsonl")).answers == 600
    assert sorted(events) == [("answer", 88), ("answer", 512), ("encode", 88), ("encode", 512)]
    found = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    expected = [answer(part) for part in ([{"text": text} for text in lines[:512]], [{"text": t} for t in lines[512:]])]
    assert [own["id"] for own in found] == [str(number) for number in range(600)]
    assert [own["probabilities"] for own in found] == [own["probabilities"] for part in expected for own in part]


def test_memory_does_not_grow_with_a_task_file(tmp_path):
    peaks = []
    for number_of_rows in (1_500, 9_000):
        rows = "".join(f"{number}\tthe film number {number}\n" for number in range(number_of_rows))
        (tmp_path / "test.tsv").write_text("index\tsentence\n" + rows)
        tracemalloc.start()
        counts = answer_file(_Echo(get_task("sst2")), str(tmp_path / "test.tsv"), str(tmp_path / "out.jsonl"))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert counts.answers == number_of_rows
    assert peaks[1] < 1.3 * peaks[0]


def test_conll_documents_are_read_one_chunk_at_a_time(tmp_path):
    mark = "-DOCSTART- -X- O O\n\n"
    (tmp_path / "eng.testb").write_text(mark + (mark + "Anna NNP I-NP B-PER\n\n" * 300) * 6)
    predictor = load_columns_counter()
    counts = answer_file(predictor, str(tmp_path / "eng.testb"), str(tmp_path / "out.jsonl"))
    assert counts.answers == 1800
    assert predictor.sizes == [600, 600, 600]  # whole documents


def load_columns_counter():
    class Counter:
        form, data_task = "tagging", get_task("ner")

        def __init__(self):
            self.sizes = []

        def answer(self, inputs, encoded=None):
            self.sizes.append(len(inputs))
            return [{"id": item["id"], "prediction": []} for item in inputs]

    return Counter()


def test_model_of_another_task_is_refused(models):
    with pytest.raises(UsageError, match="was fine-tuned for sst2, not for rte"):
        load_predictor("rte", [models["sst2"]])


def test_pretrained_model_without_a_head_for_the_task_is_refused(models):
    with pytest.raises(UsageError, match="without a head for sst2"):
        load_predictor("sst2", [models["base"]])
    with pytest.raises(UsageError, match="has no head for mlm"):
        load_predictor("mlm", [models["sst2"]])


def foreign(models, tmp_path, labels, task="mnli"):
    """A model as someone else would publish it, its outputs named by them."""
    directory = tmp_path / "foreign"
    shutil.copytree(models[task], directory)
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
        (("yes", "no"), "its head has 2 outputs, mnli needs 3"),
        (("yes", "no", "neutral"), "its head answers yes, no, neutral, expected the labels of mnli: contradiction"),
    ],
)
def test_labels_that_are_not_the_tasks_are_refused(models, tmp_path, labels, message):
    with pytest.raises(InputError, match=message):
        load_predictor("mnli", [foreign(models, tmp_path, labels)])


def test_outputs_of_a_foreign_head_may_be_counted_only(models, tmp_path):
    directory = foreign(models, tmp_path, ())
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | {"num_labels": 3}))
    assert len(load_predictor("mnli", [directory]).task.labels) == 3


def test_head_of_several_outputs_is_refused_for_a_regression(models, tmp_path):
    with pytest.raises(InputError, match="its head has 3 outputs, stsb needs 1"):
        load_predictor("stsb", [foreign(models, tmp_path, ("a", "b", "c"))])
    shutil.rmtree(tmp_path / "foreign")
    assert load_predictor("stsb", [foreign(models, tmp_path, ("LABEL_0",), "stsb")]).task.kind == "regression"


def test_names_of_numbered_classes_on_the_hub_decide_the_order_of_a_foreign_head(models, tmp_path):
    swapped = foreign(models, tmp_path, ("POSITIVE", "negative"), "sst2")
    ours, theirs = (load_predictor("sst2", [m]).answer([{"text": "a song"}])[0] for m in (models["sst2"], swapped))
    assert theirs["probabilities"] == {"1": ours["probabilities"]["0"], "0": ours["probabilities"]["1"]}
    assert theirs["prediction"] != ours["prediction"]
    shutil.rmtree(swapped)
    with pytest.raises(InputError, match="its head answers spam, ham, expected the labels of sst2: negative, positive"):
        load_predictor("sst2", [foreign(models, tmp_path, ("spam", "ham"), "sst2")])


def test_foreign_head_without_names_is_read_in_the_order_of_the_hubs_integers(models, tmp_path, caplog):
    directory = foreign(models, tmp_path, ("LABEL_0", "LABEL_1", "LABEL_2"))
    assert load_predictor("mnli", [directory]).task.labels == ("entailment", "neutral", "contradiction")
    assert "order is assumed to be entailment, neutral, contradiction" in caplog.text


def untrained(directory, task, **overrides):
    """An untrained model with the task's head, as other authors publish one."""
    task = get_task(task)
    shape = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": len(tiny_tasks.TOKENS)}
    config = BertConfig(**shape, intermediate_size=32, labels=task.hub_names or task.labels, **overrides)
    directory.mkdir()
    save_model(
        new_model(HEAD_CLASSES[KINDS[task.kind].architecture], config, seed=0), directory, tiny_tasks.tokenizer()
    )
    return directory


def test_foreign_model_of_squad_reads_windows_of_the_paper_that_overlap(tmp_path):
    config = load_task_model(untrained(tmp_path / "long", "squad1"), "squad1").config
    assert (config.max_seq_length, config.doc_stride, config.max_query_length) == (384, 128, 64)
    for positions in (8, 64, 128):
        directory = untrained(tmp_path / str(positions), "squad2", max_position_embeddings=positions)
        config = load_task_model(directory, "squad2").config
        assert config.max_seq_length == positions
        windows = token_windows(300, positions - config.max_query_length - 3, config.doc_stride)
        assert all(
            second < end or positions == 8  # has room for one token
            for (_, end), (second, _) in itertools.pairwise(windows)
        )


def test_foreign_classifier_reads_up_to_its_positions_or_the_limit_of_its_tokenizer(tmp_path):
    directory = untrained(tmp_path / "model", "sst2")
    path = directory / "tokenizer_config.json"
    document = json.loads(path.read_text())
    for limit, expected in ((int(1e30), 512), (None, 512), (200, 200)):
        path.write_text(json.dumps({**document, "model_max_length": limit}))
        predictor = load_predictor("sst2", [directory])
        assert predictor.models[0].config.max_seq_length == expected
        (answer,) = predictor.answer([{"text": "a " * 300}])
        assert ("truncated" in answer) == (expected < 302)


@pytest.mark.parametrize("task", ["mnli", "squad1", "swag"])
def test_model_with_one_segment_is_refused_for_two_texts(task, tmp_path):
    with pytest.raises(UsageError, match=f"type_vocab_size=1, but {task} reads two texts"):
        load_predictor(task, [untrained(tmp_path / "model", task, type_vocab_size=1)])
    (answer,) = load_predictor("sst2", [untrained(tmp_path / "one", "sst2", type_vocab_size=1)]).answer([{"text": "a"}])
    assert answer["prediction"] in ("0", "1")


def test_pretrained_model_is_refused_with_an_untrained_head_or_one_segment(tmp_path):
    directory = tiny_tasks.make_model(tmp_path / "model", type_vocab_size=1)
    with pytest.raises(UsageError, match="its next-sentence head was never trained"):
        load_predictor("nsp", [tiny_tasks.make_model(tmp_path / "mlm")])
    with pytest.raises(UsageError, match="type_vocab_size=1, but nsp reads two texts"):
        load_predictor("nsp", [directory])


def test_input_has_the_columns_of_the_yaml_that_is_named(models, tmp_path):
    """Those of the present file, whatever the files were that the model was trained on."""
    description = to_mapping(get_task("sst2"))
    description |= {"columns": {"text_a": "comment", "index": "ticket"}, "separator": ";", "encoding": "cp1252"}
    (tmp_path / "sst2.yaml").write_text(json.dumps(description), encoding="utf-8")
    production = tmp_path / "production.csv"
    production.write_bytes('ticket;other;comment\nA-1;é é;"the film; was lovely"\n'.encode("cp1252"))
    output = tmp_path / "out.jsonl"
    predict(str(tmp_path / "sst2.yaml"), [models["sst2"]], str(production), str(output))
    (answer,) = map(json.loads, output.read_text(encoding="utf-8").splitlines())
    assert answer["id"] == "A-1"


@pytest.mark.parametrize("content", ["the film; été\nfine\n", "id;text\n0;the film\n1;été\n"])
def test_plain_input_may_be_written_otherwise_than_the_files_of_the_task(content, models, tmp_path):
    model = load_task_model(models["sst2"])
    task = dataclasses.replace(model.task, separator=";", encoding="cp1252")
    predictor, file = TaskPredictor([dataclasses.replace(model, task=task)]), tmp_path / "in.txt"
    answers = []
    for encoding in ("utf-8", "cp1252"):
        file.write_bytes(content.encode(encoding))
        assert answer_file(predictor, str(file), str(tmp_path / "out.jsonl")).answers == 2
        answers.append((tmp_path / "out.jsonl").read_bytes())
    assert answers[0] == answers[1]
    assert [row.fields["text"] for row in read_rows(str(file), "text", task)][0].startswith("the film")


def test_predicted_tags_have_the_scheme_and_the_characters_of_the_files(models, tmp_path):
    model = load_task_model(models["ner"])
    predictor = TaskPredictor([dataclasses.replace(model, task=dataclasses.replace(model.task, scheme="bioes"))])
    text = "Anna  lives in Oslo."
    (answer,) = predictor.answer([{"text": text}])
    (plain,) = TaskPredictor([model]).answer([{"text": text}])
    assert plain["entities"] == answer["entities"] != []
    assert plain["tags"] != answer["tags"] == answer["prediction"]
    assert to_iob2(answer["tags"], model.task.labels) == plain["tags"]
    for entity in answer["entities"]:
        assert text[entity["start"] : entity["end"]].split() == entity["text"].split()
    kind = kind_of(predictor.task)
    assert kind.checked("", answer["tags"]) == tuple(plain["tags"])
