"""Codes of languages, as MediaWiki writes them today."""

import functools
import json
from pathlib import Path
from typing import Any

_MEDIAWIKI = Path(__file__).parent / "data" / "mediawiki.json"


@functools.lru_cache(maxsize=256)
def current_code(language: str) -> str:
    """Return the lower-case code that is in use for a wiki's language: "nb" for "no", "en" for "simple"."""
    language = language.lower()
    code: str = mediawiki_names()["renamed"].get(language, language)
    return code


@functools.lru_cache(maxsize=1)
def mediawiki_names() -> dict[str, Any]:
    """Return names of namespaces and magic words by language, as `benchmarks/mediawiki_names.py` wrote them."""
    names: dict[str, Any] = json.loads(_MEDIAWIKI.read_text(encoding="utf-8"))
    return names
