"""Codes of languages, as MediaWiki writes them today."""

import functools
import json
from pathlib import Path

MEDIAWIKI = Path(__file__).parent / "data" / "mediawiki.json"
"""Names of namespaces and magic words by language, made by `benchmarks/mediawiki_names.py`."""


@functools.lru_cache(maxsize=256)
def current_code(language: str) -> str:
    """Return the lower-case code that is in use for a wiki's language: "nb" for "no", "en" for "simple"."""
    language = language.lower()
    return _renamed().get(language, language)


@functools.lru_cache(maxsize=1)
def _renamed() -> dict[str, str]:
    renamed: dict[str, str] = json.loads(MEDIAWIKI.read_text(encoding="utf-8"))["renamed"]
    return renamed
