"""Features equal the hidden states of transformers; the tagger reads the six inputs of the paper's Table 7."""

import csv
import gzip
import io
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import tiny_tasks
import torch
import transformers

from bert_model.cli import main
from bert_model.inference import features
from bert_model.inference.features import write_features
from bert_model.kinds.text import encode_texts
from bert_model.model.heads import Tagger, chosen_states
from bert_pipeline.errors import ConfigurationError, InputError, UsageError


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_tasks.make_model(tmp_path_factory.mktemp("model") / "tiny", num_hidden_layers=3)


def test_parquet_has_the_hidden_states_that_transformers_computes(model, tmp_path):
    (tmp_path / "in.txt").write_text("the film was fine .\na song\tthe meal was sour .\n")
    assert write_features(model, str(tmp_path / "in.txt"), tmp_path / "out.parquet", layers=(-1, 0, 2)) == 2
    rows = pq.read_table(tmp_path / "out.parquet").to_pylist()
    assert rows[0]["tokens"] == ["[CLS]", "the", "film", "was", "fine", ".", "[SEP]"]
    assert (rows[1]["text"], rows[1]["text_b"]) == ("a song", "the meal was sour .")
    theirs = transformers.BertModel.from_pretrained(model).eval()
    tokens = tiny_tasks.tokenizer().tokens
    for row, types in zip(rows, ([0] * 7, [0] * 4 + [1] * 6)):
        ids = torch.tensor([[tokens.index(token) for token in row["tokens"]]])
        with torch.no_grad():
            states = theirs(ids, token_type_ids=torch.tensor([types]), output_hidden_states=True).hidden_states
        for layer in (3, 0, 2):
            np.testing.assert_allclose(np.array(row[f"layer_{layer}"]), states[layer][0].numpy(), atol=1e-5)


@pytest.mark.parametrize(
    ("num_layers", "options", "expected"), [(1, [], "10"), (4, [], "4321"), (4, ["--pool", "mean"], "4")]
)
def test_layers_are_the_upper_ones_of_a_model_by_default(tmp_path, num_layers, options, expected):
    model = tiny_tasks.make_model(tmp_path / "model", num_hidden_layers=num_layers)
    (tmp_path / "in.txt").write_text("the film was fine .\n")
    words = ["features", "--model", str(model), "--input", str(tmp_path / "in.txt"), *options, "--output"]
    assert main([*words, str(tmp_path / "out.parquet")]) == 0
    names = pq.read_table(tmp_path / "out.parquet").column_names
    assert [name for name in names if name.startswith("layer_")] == [f"layer_{number}" for number in expected]


def test_features_of_bfloat16_are_those_of_float32_rounded(model, tmp_path):
    (tmp_path / "in.txt").write_text("the film was fine .\n")
    words = ["features", "--model", str(model), "--input", str(tmp_path / "in.txt"), "--layers", "-1", "--output"]
    states = []
    for precision in ("float32", "bfloat16"):
        assert main([*words, str(tmp_path / precision), "--precision", precision]) == 0
        (row,) = pq.read_table(tmp_path / precision).to_pylist()
        states.append(np.array(row["layer_3"]))
    assert 0 < np.abs(states[0] - states[1]).max() < 0.05


def test_model_with_one_segment_is_refused_for_two_texts(tmp_path):
    model = tiny_tasks.make_model(tmp_path / "model", type_vocab_size=1)
    (tmp_path / "in.txt").write_text("the film\na song\n")
    assert write_features(model, str(tmp_path / "in.txt"), tmp_path / "out.parquet", layers=(-1,)) == 2
    (tmp_path / "in.txt").write_text("the film\na song\tthe meal\n")
    with pytest.raises(UsageError, match="type_vocab_size=1, but bert features reads two texts"):
        write_features(model, str(tmp_path / "in.txt"), tmp_path / "pairs.parquet", layers=(-1,))
    assert not (tmp_path / "pairs.parquet").exists()


def test_texts_that_are_cut_are_counted(model, tmp_path, caplog):
    (tmp_path / "in.txt").write_text("the film\n" + "the film was fine . " * 100 + "\n")
    assert write_features(model, str(tmp_path / "in.txt"), tmp_path / "out.parquet", layers=(-1,)) == 2
    assert "1 texts were cut to the model's" in caplog.text


def test_row_groups_of_long_texts_have_fewer(model, tmp_path, monkeypatch):
    texts = [*["the film was fine . " * 2] * 5, "a song"]
    (tmp_path / "in.txt").write_text("\n".join(texts))
    parts = []
    for limit in (features.MAX_VALUES, 3 * 12 * 32):
        monkeypatch.setattr(features, "MAX_VALUES", limit)
        assert write_features(model, str(tmp_path / "in.txt"), tmp_path / "out.parquet", layers=(-1,)) == 6
        file = pq.ParquetFile(tmp_path / "out.parquet")
        parts.append([file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)])
        assert [row["text"].strip() for row in file.read().to_pylist()] == [text.strip() for text in texts]
    assert parts == [[6], [3, 3]]


def test_text_that_fails_is_set_aside(model, tmp_path, monkeypatch, caplog):
    def encode(pairs, *args):
        if any("<bad>" in text for text, _ in pairs):
            raise IndexError("no such piece")
        return encode_texts(pairs, *args)

    monkeypatch.setattr(features, "encode_texts", encode)
    lines = ["the film", "a song <bad>", "", "the meal was sour ."]
    (tmp_path / "in.txt").write_text("\n".join(lines))
    assert write_features(model, str(tmp_path / "in.txt"), tmp_path / "out.parquet", layers=(-1,)) == 2
    assert pq.read_table(tmp_path / "out.parquet")["text"].to_pylist() == [lines[0], lines[3]]
    (rejected,) = map(json.loads, (tmp_path / "out.parquet.rejected.jsonl").read_text().splitlines())
    assert rejected == {"id": "1", "error": "IndexError: no such piece", "line": "a song <bad>"}
    assert "1 of 3 texts failed and are left out; the first: id 1 (IndexError: no such piece)" in caplog.text
    (tmp_path / "in.txt").write_text("\n".join(lines[:2]))
    with pytest.raises(InputError, match="^1 of 2 texts failed, expected at most 0: .* id 1 "):
        write_features(model, str(tmp_path / "in.txt"), tmp_path / "all.parquet", layers=(-1,))
    assert not list(tmp_path.glob("all.parquet*"))


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
@pytest.mark.parametrize("columns", [("id", "text", "label"), ("idx", "label", "sentence"), ("id", "queue", "comment")])
def test_rows_of_a_csv_file_are_texts_with_their_ids(columns, compress, model, tmp_path):
    texts = ['the film, fine and "dull",\nwas sour .' if n % 3 else f"the film was fine {n}" for n in range(50)]
    stream = io.StringIO()
    writer = csv.writer(stream)
    # The first column has ids, the one of several words texts, the other one word.
    rows = [[f"r{n}", *((text, "good") if columns[1] == "text" else ("good", text))] for n, text in enumerate(texts)]
    writer.writerows([columns, *rows])
    (tmp_path / "test.csv").write_bytes(compress(stream.getvalue().encode()))
    assert write_features(model, str(tmp_path / "test.csv"), tmp_path / "out.parquet", layers=(-1,)) == 50
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["text"].to_pylist() == texts
    assert table["id"].to_pylist() == [f"r{n}" for n in range(50)]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.csv", "subject,body\na song,the film\n", r"in.csv:1: found the columns subject, body, expected text, or"),
        ("in.jsonl", '{"number": 1}\n', r"in.jsonl:1: found the columns number, expected text, or text and text_b"),
        ("in.txt", "Anna NNP B-PER\nlives VBZ O\n", r"in.txt:1: found CoNLL's columns, expected text"),
    ],
)
def test_table_without_one_column_of_texts_is_refused(name, content, message, model, tmp_path):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        write_features(model, str(tmp_path / name), tmp_path / "out.parquet", layers=(-1,))


def test_layer_that_the_model_does_not_have_is_named(model, tmp_path):
    (tmp_path / "in.txt").write_text("the film\n")
    with pytest.raises(ConfigurationError, match="layers: found -5, expected -4 to 3"):
        write_features(model, str(tmp_path / "in.txt"), tmp_path / "out.parquet", layers=(-5,))
    assert not (tmp_path / "out.parquet").exists()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n", "no text in it"),
        ("a song\n\na\tb\tc\n", r"in.txt:3: 3 tab-separated fields, expected text, optionally text_b"),
    ],
)
def test_bad_input_names_its_line_and_leaves_no_file(text, message, model, tmp_path):
    (tmp_path / "in.txt").write_text(text)
    with pytest.raises(InputError, match=message):
        write_features(model, str(tmp_path / "in.txt"), tmp_path / "out.parquet", layers=(-1,))
    assert [path.name for path in tmp_path.iterdir()] == ["in.txt"]


def test_six_inputs_of_table_7():
    inputs = ("embeddings", "second_to_last", "last", "weighted_sum_last_four", "concat_last_four", "weighted_sum_all")
    found = json.dumps([chosen_states(name, 13) for name in inputs])
    assert found == json.dumps([[0], [11], [12], [9, 10, 11, 12], [9, 10, 11, 12], list(range(1, 13))])


def test_weighted_sum_starts_as_the_mean_and_learns_its_weights():
    tagger = Tagger((4, 8), 3, feature_input="weighted_sum_last_four", hidden_size=5, dropout=0.0).draw_weights(1)
    features = torch.randn(2, 6, 4, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 6, dtype=torch.long)
    summed = tagger(features, mask)
    mean = features.mean(dim=2, keepdim=True).expand(-1, -1, 4, -1)
    torch.testing.assert_close(summed, tagger(mean, mask))
    summed.sum().backward()
    assert tagger.mixture.grad.abs().sum() > 0


def test_tagger_does_not_read_padding():
    tagger = Tagger((2, 8), 3, feature_input="concat_last_four", hidden_size=5, dropout=0.0).draw_weights(1).eval()
    features = torch.randn(1, 6, 2, 8, generator=torch.Generator().manual_seed(0))
    padded = torch.cat([features, torch.full((1, 3, 2, 8), 9.0)], dim=1)
    mask = torch.tensor([[1] * 6 + [0] * 3])
    alone = tagger(features, mask[:, :6])
    torch.testing.assert_close(tagger(padded, mask)[:, :6], alone)
