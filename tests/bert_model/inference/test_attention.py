"""Attention page: the weights equal those of transformers, the page is self-contained, bad texts are refused."""

import base64
import json
import re
import shutil
import subprocess

import numpy as np
import pytest
import tiny_tasks
import torch
import transformers

from bert_model.cli import main
from bert_model.inference.attention import LEVELS, MAX_TOKENS, render, write_attention
from bert_pipeline.errors import InputError, UsageError

A, B = "the film was lovely .", "anna lives in rome ."
TOKENS = ["[CLS]", *A.split(), "[SEP]", *B.split(), "[SEP]"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_tasks.make_model(tmp_path_factory.mktemp("attention") / "tiny", num_hidden_layers=2)


def data_of(page):
    text = page.read_text(encoding="utf-8")
    data = json.loads(re.search(r"const data = (\{.*\});\n", text).group(1))
    size = len(data["tokens"])
    levels = np.frombuffer(base64.b64decode(data["weights"]), dtype=np.uint8)
    return data, (levels.reshape(data["layers"], data["heads"], size, size) / LEVELS) ** 2


def test_page_has_the_attention_that_transformers_computes(model, tmp_path, capsys):
    page = tmp_path / "page.html"
    assert main(["attention", "--model", str(model), A, B, "--output", str(page)]) == 0
    data, weights = data_of(page)
    assert data["tokens"] == TOKENS
    assert data["segmentBStart"] == TOKENS.index("[SEP]") + 1
    theirs = transformers.BertModel.from_pretrained(model, attn_implementation="eager").eval()
    ids = torch.tensor([[tiny_tasks.TOKENS.index(token) for token in TOKENS]])
    types = torch.tensor([[int(index >= data["segmentBStart"]) for index in range(len(TOKENS))]])
    with torch.no_grad():
        attentions = theirs(ids, token_type_ids=types, output_attentions=True).attentions
    expected = np.stack([layer[0].numpy() for layer in attentions])
    np.testing.assert_allclose(weights, expected, atol=0.005)
    assert capsys.readouterr().out == f"{page}: attention between {len(TOKENS)} tokens\n"


def test_model_with_one_segment_is_refused_for_two_texts(tmp_path):
    model = tiny_tasks.make_model(tmp_path / "model", type_vocab_size=1)
    with pytest.raises(UsageError, match="type_vocab_size=1, but bert attention reads two texts"):
        write_attention(model, A, B, tmp_path / "page.html")
    assert write_attention(model, A, None, tmp_path / "page.html") == 7
    assert data_of(tmp_path / "page.html")[0]["segmentBStart"] == 7


def test_page_loads_nothing_from_elsewhere(model, tmp_path):
    write_attention(model, A, B, tmp_path / "page.html")
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert not re.search(
        r"https?:|//\w|\bsrc=|\bhref=|@import|url\(", text.replace(data_of(tmp_path / "page.html")[0]["weights"], "")
    )


def test_script_end_tag_in_a_text_is_escaped():
    page = render({"tokens": ["</script><script>alert(1)</script>"]})
    assert page.count("</script>") == 1


def test_causal_model_attends_to_the_left_only(tmp_path):
    causal = tiny_tasks.make_model(tmp_path / "causal", attention="causal")
    write_attention(causal, A, B, tmp_path / "page.html")
    data, weights = data_of(tmp_path / "page.html")
    assert data["causal"] is True
    assert np.triu(weights[0, 0], 1).max() == 0


@pytest.mark.parametrize(
    ("text_a", "text_b", "message"),
    [
        (" ", None, r"TEXT_A: ' ' has no token"),
        (A, "", r"TEXT_B: '' has no token"),
        ("film " * 80, None, r"the texts have 82 tokens with \[CLS\] and \[SEP\], expected at most 64; shorten"),
    ],
)
def test_texts_that_cannot_be_shown_are_refused_and_leave_no_page(model, tmp_path, text_a, text_b, message):
    assert MAX_TOKENS > 64
    with pytest.raises(InputError, match=message):
        write_attention(model, text_a, text_b, tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


BROWSER = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.mark.skipif(BROWSER is None, reason="no Chromium on the PATH: the page's script is not run")
def test_page_builds_itself_in_a_browser(model, tmp_path):
    page = tmp_path / "page.html"
    write_attention(model, A, B, page)
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [BROWSER, *options, "--virtual-time-budget=2000", "--dump-dom", f"file://{page}#2-1"]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "layer 2, head 1" in dom
    assert len(re.findall(r"<canvas[^>]* title=\"layer \d, head \d\"", dom)) == 4
    assert len(re.findall(r'<div class="segment-b">', dom)) == 2 * (len(B.split()) + 1)
