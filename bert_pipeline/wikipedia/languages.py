"""Codes of languages, as MediaWiki writes them today, and its names in them: two letters where ISO 639-1 has a code."""

import functools
import json
import re
from pathlib import Path
from typing import Any

_THREE_LETTERS: dict[str, str] = dict(re.findall(r"(\w+):(\w+)", """
    afr:af amh:am ara:ar arb:ar aze:az azj:az bel:be ben:bn bod:bo bos:bs bul:bg cat:ca ces:cs cmn:zh cym:cy
    dan:da deu:de dzo:dz ell:el eng:en epo:eo est:et ekk:et eus:eu fas:fa fin:fi fra:fr gle:ga glg:gl guj:gu
    heb:he hin:hi hrv:hr hun:hu hye:hy ind:id isl:is ita:it jpn:ja kan:kn kat:ka kaz:kk khm:km kor:ko lao:lo
    lat:la lav:lv lit:lt ltz:lb lvs:lv mal:ml mar:mr mkd:mk msa:ms mya:my nep:ne nld:nl nno:nn nob:nb nor:nb
    npi:ne pan:pa pes:fa pol:pl por:pt ron:ro rus:ru sin:si slk:sk slv:sl spa:es sqi:sq srp:sr swe:sv tam:ta
    tel:te tha:th tir:ti tur:tr ukr:uk urd:ur vie:vi zho:zh zsm:ms
"""))  # fmt: skip
"""Codes of ISO 639-3 that corpora such as FineWeb-2 write, of languages for which there are rules or templates."""
_MEDIAWIKI = Path(__file__).parent / "data" / "mediawiki.json"


@functools.lru_cache(maxsize=256)
def current_code(language: str) -> str:
    """Return the lower-case code in use for a language: "nb" for "no", "en" for "simple", "th" for "tha"."""
    written = language.lower().replace("_", "-")
    code: str = mediawiki_names()["renamed"].get(written, written)
    base, hyphen, rest = code.partition("-")
    return _THREE_LETTERS.get(base, base) + hyphen + rest


def names_with_fallbacks(language: str) -> list[dict[str, Any]]:
    """Return MediaWiki's names in a language, then those in its fallback languages; English is the last."""
    languages = mediawiki_names()["languages"]
    code = current_code(language)
    code = code if code in languages else code.partition("-")[0]
    codes = dict.fromkeys((code, *languages.get(code, {}).get("fallback", ()), "en"))
    return [languages[code] for code in codes if code in languages]


@functools.lru_cache(maxsize=1)
def mediawiki_names() -> dict[str, Any]:
    """Return names of namespaces and magic words by language, as `benchmarks/mediawiki_names.py` wrote them."""
    names: dict[str, Any] = json.loads(_MEDIAWIKI.read_text(encoding="utf-8"))
    return names
