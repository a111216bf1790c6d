"""Codes of languages, as MediaWiki writes them today, and its names in them: two letters where ISO 639-1 has a code."""

import functools
import json
import re
import tomllib
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
_CODES = """
aa ab ace ady af ak als alt am ami an ang ann anp ar arc ary arz as ast atj av avk awa ay az azb ba ban bar bat-smg
bbc bcl bdr be be-tarask be-x-old bew bg bh bi bjn blk bm bn bo bpy br bs btm bug bxr ca cbk-zam cdo ce ceb ch cho
chr chy ckb co cr crh cs csb cu cv cy da dag de dga din diq dsb dtp dty dv dz ee el eml en eo es et eu ext fa fat
ff fi fiu-vro fj fo fon fr frp frr fur fy ga gag gan gcr gd gl glk gn gom gor got gpe gsw gu guc gur guw gv ha hak
haw he hi hif ho hr hsb ht hu hy hyw hz ia iba id ie ig igl ii ik ilo inh io is it iu ja jam jbo jv ka kaa kab kbd
kbp kcg kg kge ki kj kk kl km kn knc ko koi kr krc ks ksh ku kus kv kw ky la lad lb lbe lez lfn lg li lij lld lmo
ln lo lrc lt ltg lv mad mai map-bms mdf mg mh mhr mi min mk ml mn mni mnw mo mos mr mrj ms mt mus mwl my myv mzn na
nah nap nds nds-nl ne new ng nia nl nn no nov nqo nr nrm nso nup nv ny oc olo om or os pa pag pam pap pcd pcm pdc
pfl pi pih pl pms pnb pnt ps pt pwn qu rm rmy rn ro roa-rup roa-tara rsk ru rue rw sa sah sat sc scn sco sd se sg
sgs sh shi shn si simple sk skr sl sm smn sn so sq sr srn ss st stq su sv sw syl szl szy ta tay tcy tdd te tet tg
th ti tig tk tl tly tn to tokipona tpi tr trv ts tt tum tw ty tyv udm ug uk ur uz ve vec vep vi vls vo vro wa war
wo wuu xal xh xmf yi yo yue za zea zgh zh zh-classical zh-min-nan zh-yue zu
"""

WIKIPEDIAS = frozenset(_CODES.split())
"""Codes of Wikipedias, which are prefixes of links: https://meta.wikimedia.org/wiki/List_of_Wikipedias"""
_MEDIAWIKI = Path(__file__).parent / "data" / "mediawiki.json"


@functools.lru_cache(maxsize=256)
def current_code(language: str) -> str:
    """Return the lower-case code in use for a language: "nb" for "no", "en" for "simple", "th" for "tha"."""
    written = language.lower().replace("_", "-")
    code: str = mediawiki_names()["renamed"].get(written, written)
    base, hyphen, rest = code.partition("-")
    return _THREE_LETTERS.get(base, base) + hyphen + rest


@functools.cache
def end_sections(language: str) -> frozenset[str]:
    """Return the headings, in lower case, of sections such as "References"; English ones of a language without any."""
    sections = tomllib.loads((_MEDIAWIKI.parent / "end_sections.toml").read_text(encoding="utf-8"))
    code = current_code(language)
    return frozenset(sections.get(code) or sections.get(code.partition("-")[0]) or sections["en"])


def is_code(language: str) -> bool:
    """Return True for a code of a language: of a Wikipedia or of MediaWiki, or of three letters, as in ISO 639-3."""
    base = current_code(language).partition("-")[0]
    is_known = base in WIKIPEDIAS or base in mediawiki_names()["languages"]
    return is_known or len(base) == 3 and base.isascii() and base.isalpha()


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
