"""A model with any tokenizer goes through the whole pipeline: instances, pre-training, exams, tasks, features."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import other_tokenizers
import pyarrow.parquet as pq
import pytest
import tiny_tasks
from small_corpus import WORDS as WORDS_OF_CORPUS
from small_corpus import make_corpus, make_documents
from small_training import SMALL_MODEL, train

from bert_model.cli import main
from bert_model.finetuning.config import FinetuningConfig
from bert_model.inference.predict import load_predictor
from bert_model.kinds import kind_of
from bert_model.kinds.tagging import by_word
from bert_pipeline.errors import ConfigurationError, InputError
from bert_pipeline.instances.columns import pad
from bert_pipeline.instances.job import build_instances
from bert_pipeline.instances.masking import MaskingConfig, mask_batch
from bert_pipeline.instances.pairs import InstancesConfig
from bert_pipeline.instances.parquet import ParquetInstances
from bert_pipeline.tasks.catalogue import get_task
from bert_pipeline.tasks.example import Answer, SpanExample, TaggedExample
from bert_pipeline.vocabulary.files import SPECIAL_TOKENS
from bert_pipeline.vocabulary.tokenizer import Tokenizer

WORDS = (("Anna", "Lind", ",", "54", "ﬁne"), ("東京", "is", "n't", "here", "."))


def settings_of(instances):
    phase = {"max_seq_length": 32, "steps": 4, "global_batch_size": 8, "warmup_steps": 1, "learning_rate": 1e-3}
    return {
        "phases": [{**phase, "instances": str(instances)}],
        "masking": {"whole_word_masking": True},
        "micro_batch_size": 4,
    }


@pytest.fixture(scope="module", params=["roberta", "unigram", "wordpiece"])
def workplace(request, tmp_path_factory):
    """A vocabulary, instances of a corpus with it, and a model trained on them with masks of whole words."""
    root = tmp_path_factory.mktemp(request.param)
    other_tokenizers.make(request.param, root / "vocabulary")
    make_corpus(root / "corpus", [make_documents(60, held_out=range(0, 60, 6))])
    config = InstancesConfig(max_seq_length=32, dupe_factor=1)
    build_instances(root / "corpus", root / "vocabulary", root / "instances", config, ["--workers", "1"])
    train(settings_of(root / "instances") | {"model": SMALL_MODEL}, root / "run")
    return root


def columns_of(directory, split="train"):
    with ParquetInstances(directory / split / "instances-00000.parquet") as shard:
        return shard.read_row_group(0)


def test_instances_store_which_tokens_continue_a_word(workplace, capsys):
    tokenizer = Tokenizer.from_directory(workplace / "instances")
    assert tokenizer.sha256 == Tokenizer.from_directory(workplace / "vocabulary").sha256
    columns = columns_of(workplace / "instances")
    assert len(columns.continues_word) == len(columns.input_ids)
    assert 0.2 < columns.continues_word.mean() < 0.95
    assert not columns.continues_word[np.isin(columns.input_ids, [tokenizer.cls_id, tokenizer.sep_id])].any()
    assert main(["instances", "--show", "1", str(workplace / "instances")]) == 0
    assert tokenizer.names[2] in capsys.readouterr().out


def test_whole_words_are_masked_or_none_of_their_tokens(workplace):
    tokenizer, columns = Tokenizer.from_directory(workplace / "instances"), columns_of(workplace / "instances")
    width = int(columns.lengths.max())
    ids, joins = (pad(flat, columns.offsets, width) for flat in (columns.input_ids, columns.continues_word))
    keys = np.arange(len(ids), dtype=np.uint64)
    config = MaskingConfig(whole_word_masking=True, masked_lm_prob=0.4)
    batch = mask_batch(ids, columns.lengths, keys, tokenizer, config, joins)
    chosen = np.zeros(ids.shape, dtype=bool)
    chosen[np.repeat(np.arange(len(ids)), np.diff(batch.masked_offsets)), batch.masked_lm_positions] = True
    special = np.isin(ids, [tokenizer.cls_id, tokenizer.sep_id])
    inside = joins[:, 1:] & ~special[:, :-1]  # a cut word after [CLS] begins there
    assert chosen.sum() > len(ids)
    assert (chosen[:, 1:] == chosen[:, :-1])[inside].all()
    with pytest.raises(InputError, match="do not tell words apart"):
        mask_batch(ids, columns.lengths, keys, tokenizer, config)


def test_static_masks_of_whole_words_need_no_column(workplace, tmp_path):
    config = InstancesConfig(max_seq_length=32, dupe_factor=1, masking="static", whole_word_masking=True)
    build_instances(workplace / "corpus", workplace / "vocabulary", tmp_path / "static", config, ["--workers", "1"])
    columns = columns_of(tmp_path / "static")
    assert columns.is_masked
    assert columns.continues_word is None


def test_training_goes_on_from_a_model_with_its_vocabulary_only(workplace, tmp_path):
    settings = settings_of(workplace / "instances") | {"model": {"preset": "initial"}}
    train(settings | {"initial_model": str(workplace / "run" / "model")}, tmp_path / "run")
    base = tiny_tasks.make_model(tmp_path / "other", max_position_embeddings=64)
    with pytest.raises(ConfigurationError, match="two vocabularies.* or move a model .* by `bert adapt`"):
        train(settings | {"initial_model": str(base)}, tmp_path / "refused")


@pytest.mark.parametrize("name", ["sst2", "stsb", "swag", "squad2", "ner"])
def test_tasks_train_and_answer(workplace, tmp_path, name):
    data = tiny_tasks.task_data(name, num_train=8, num_dev=4)
    model, output = workplace / "run" / "model", tmp_path / name
    tiny_tasks.tune(data, model, output, epochs=[1.0], document_context=name == "ner")
    predictor = load_predictor(name, [tmp_path / name])
    kind = kind_of(data.task)
    answers = predictor.answer([kind.fields(example) for example in data.dev["dev"]])
    assert len(answers) == 4
    if name == "ner":
        assert [len(answer["tags"]) for answer in answers] == [len(e.words) for e in data.dev["dev"]]
    tokenizer = Tokenizer.from_directory(tmp_path / name)
    assert tokenizer.sha256 == Tokenizer.from_directory(workplace / "vocabulary").sha256


def test_answer_of_a_question_is_found_by_characters(workplace):
    tokenizer = Tokenizer.from_directory(workplace / "vocabulary")
    task = get_task("squad1")
    context = "Nobody knows. The mayor, Anna Lind (ﬁne, 54), lives   in 東京 now."
    for text in ("Anna Lind", "mayor", "54", "in 東京", "ﬁne"):
        start = context.index(text)
        example = SpanExample("1", "", context, "who?", answers=(Answer(text, start),))
        encoded = kind_of(task).encode([example], tokenizer, FinetuningConfig(max_seq_length=200))
        first, last = int(encoded.row_columns["start_positions"][0]), int(encoded.row_columns["end_positions"][0])
        begin, end = (encoded.token_columns[name] for name in ("character_start", "character_end"))
        found = context[begin[first] : end[last]]
        assert text in found
        assert len(found) <= len(text) + 2
        assert found == found.strip()


def test_words_are_scored_at_their_first_token(workplace):
    tokenizer = Tokenizer.from_directory(workplace / "vocabulary")
    examples = [TaggedExample(str(n), "d", words, ("O",) * len(words)) for n, words in enumerate(WORDS)]
    config = FinetuningConfig(document_context=True)
    encoded = kind_of(get_task("ner")).encode(examples, tokenizer, config)
    engine_ids = [i for n, words in enumerate(WORDS) for i in tokenizer.encode(" " * (n > 0) + " ".join(words))]
    assert encoded.input_ids.tolist() == [tokenizer.cls_id, *engine_ids, tokenizer.sep_id]
    scored = by_word(examples, encoded, encoded.input_ids)
    pieces = [tokenizer.encode_words(words, follows=n > 0) for n, words in enumerate(WORDS)]
    assert [own.tolist() for own in scored] == [[word[0] for word in own] for own in pieces]


def test_exam_features_attention_and_masks(workplace, tmp_path, capsys):
    model = str(workplace / "run" / "model")
    pair = {"sentence_good": "kalo mika nertu", "sentence_bad": "nertu kalo mika"}
    (tmp_path / "pairs.jsonl").write_text(json.dumps(pair) + "\n")
    for options in ([], ["--whole-words"]):
        assert main(["exam", model, "--pairs", str(tmp_path / "pairs.jsonl"), *options]) == 0
    texts, output = str(tmp_path / "in.txt"), str(tmp_path / "f.parquet")
    Path(texts).write_text("The river flows\tnorth\n")
    assert main(["features", "--model", model, "--input", texts, "--output", output, "--layers=-1"]) == 0
    (row,) = pq.read_table(output).to_pylist()
    tokenizer = Tokenizer.from_directory(model)
    ids = [tokenizer.token_to_id(token) for token in row["tokens"]]
    a, b = tokenizer.encode("The river flows"), tokenizer.encode("north")
    assert ids == [tokenizer.cls_id, *a, tokenizer.sep_id, *b, tokenizer.sep_id]
    assert main(["attention", "--model", model, "The river", "--output", str(tmp_path / "a.html")]) == 0
    predictor = load_predictor("mlm", [Path(model)])
    for mask in ("[MASK]", tokenizer.names[-1]):
        (answer,) = predictor.answer([{"text": f"The river {mask} north."}])
        assert mask not in answer["text"]
        assert answer["text"].startswith("The river ")
        expected = [*tokenizer.encode("The river"), tokenizer.mask_id, *tokenizer.encode(" north.")]
        assert predictor._masked_ids("The river [MASK] north.")[0][1:-1] == expected


def test_whole_words_of_single_tokens_are_warned_of(tmp_path, caplog):
    (tmp_path / "vocabulary").mkdir()
    Tokenizer.from_tokens([*SPECIAL_TOKENS, ".", *WORDS_OF_CORPUS], True).save(tmp_path / "vocabulary")
    make_corpus(tmp_path / "corpus", [make_documents(30, held_out=[0, 1, 2, 3])])
    for masking in ({"masking": "static", "whole_word_masking": True}, {}):
        caplog.clear()
        config = InstancesConfig(max_seq_length=32, dupe_factor=1, **masking)
        build_instances(tmp_path / "corpus", tmp_path / "vocabulary", tmp_path / "data", config, ["--workers", "1"])
        assert ("no word has two tokens" in caplog.text) is bool(masking)
    train(settings_of(tmp_path / "data") | {"model": SMALL_MODEL}, tmp_path / "run")
    assert "no word has two tokens" in caplog.text


def test_sentences_that_are_whole_words_are_warned_of(tmp_path, caplog):
    other_tokenizers.make("unigram", tmp_path / "vocabulary")
    documents = [
        dataclasses.replace(document, sentences=tuple(sentence.replace(" ", "") for sentence in document.sentences))
        for document in make_documents(30, held_out=[0, 1, 2, 3])
    ]
    make_corpus(tmp_path / "corpus", [documents])
    config = InstancesConfig(max_seq_length=64, dupe_factor=1, masking="static", whole_word_masking=True)
    built = build_instances(tmp_path / "corpus", tmp_path / "vocabulary", tmp_path / "data", config, ["--workers", "1"])
    assert built.counts["train"].get("masked_share", 0) < 0.05
    assert "whole-word masking passes over most of the text: 9" in caplog.text


def test_whole_words_of_several_tokens_are_not_warned_of(workplace, tmp_path, caplog):
    settings = settings_of(workplace / "instances") | {"model": SMALL_MODEL}
    train(settings, tmp_path / "run")
    assert "whole-word masking" not in caplog.text
