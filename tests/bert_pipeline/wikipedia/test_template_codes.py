"""Language codes and the form of template files."""

import re
from pathlib import Path

import pytest

from bert_pipeline.errors import InputError
from bert_pipeline.wikipedia.templates import load_wiki


def test_both_codes_of_norwegian_read_its_templates() -> None:
    assert load_wiki("nb").number == load_wiki("no").number != load_wiki("en").number
    assert load_wiki("simple").is_english


def test_template_file_with_byte_order_mark_and_unknown_key(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text('[templates]\nfoo = { text = "x", source = "y" }\n', encoding="utf-8-sig")
    assert "foo" in {name.lower() for name in load_wiki("en", str(path)).renderers}
    path = tmp_path / "typo.toml"
    path.write_text('[templates]\nfoo = { text = "x", typo = "y" }\n', encoding="utf-8")
    with pytest.raises(InputError, match=re.escape("line 2: 'foo' has 'typo'")):
        load_wiki("en", str(path))
