"""Passages to sentences, in any language.

`sentencex` proposes the boundaries, except in scripts whose marks it does not know. What it gets wrong is the same in
whole families of languages: a boundary is removed inside a bracket, before a lower-case letter, after an ordinal number
where ordinals are written "13.", and after an abbreviation that always precedes a word.
"""

import itertools
import re
from collections.abc import Iterable, Sequence

import sentencex


def split_sentences(text: str, language: str) -> list[str]:
    """Split a passage into stripped sentences. `language` is a code such as "en"; an unknown one is split as English."""
    language = language.lower().partition("-")[0]
    parts = [part for part in _propose(text, language) if part and not part.isspace()]
    if len(parts) == 1:
        return _split_brackets(parts[0].strip())
    in_bracket = _starts_in_bracket(parts)
    sentences: list[str] = []
    end = ""  # the last part of the current sentence
    for index, part in enumerate(parts):
        start = part.lstrip() if part[0].isspace() else part
        if end and (in_bracket and in_bracket[index] or _continues(end, start, language)):
            sentences[-1] += part
        else:
            sentences.append(part)
        end = part.rstrip()
    return [piece for sentence in sentences for piece in _split_brackets(sentence.strip())]


# Proposed boundaries


def _propose(text: str, language: str) -> list[str]:
    """Return the parts of a text between the proposed boundaries; joined, they are the text."""
    if language == "th":
        return _split_thai(text)
    if ends := _OWN_ENDS.get(language):
        return _cut(text, (match.end() for match in ends.finditer(text)))
    masked = _mask(text, language)
    parts = sentencex.segment(language, masked)
    ends_with_unit = "km. " in text or "mm. " in text or "cm. " in text or "kg. " in text
    if masked is text and not ends_with_unit:
        return parts
    cuts = list(itertools.accumulate(map(len, parts)))[:-1]
    if ends_with_unit:
        cuts = sorted({*cuts, *(match.end() for match in _UNIT_AT_END.finditer(text))})
    return _cut(text, cuts)


def _mask(text: str, language: str) -> str:
    """Replace characters that sentencex misunderstands by others; positions stay."""
    if language == "he" and '"' in text:  # in קמ"ר the sign belongs to the word, and opens no quotation
        return _GERSHAYIM.sub("״", text)
    if language in _KEPT_BEFORE_FIGURES:
        return _FIGURE_AFTER_END.sub(r"\1X", text)
    return text


def _cut(text: str, positions: Iterable[int]) -> list[str]:
    """Cut a text at ascending positions."""
    bounds = [0, *positions, len(text)]
    return [text[start:stop] for start, stop in itertools.pairwise(bounds) if start < stop]


_OWN_ENDS = {
    language: re.compile(rf"(?:{marks})[\"'”’»）)\]」』]*+\s*+")
    for languages, marks in {
        "am ti tig": r"[።፧፨]|፡፡|[!?](?=\s)|(?<=[\u1200-\u135a]{4})\.(?=\s)",
        "bo dz": r"།[ ]?།|།(?=\s)",
        "hy hyw": r"[։!…](?=\s)|(?<=\w{3})[:․.](?=\s)",
        "ja": r"[。！？｡]|[!?](?=[\s」』）)])",
        "km": r"[។៕]|[!?](?=\s)",
        "lo": r"[!?…](?=\s)|(?<=[\u0e80-\u0eff]{4})\.(?=\s)",
        "my shn mnw": r"။|[!?](?=\s)",
        "zh gan lzh wuu yue cdo hak nan": r"[。！？｡]|[!?.](?=[\s”’」』）)])",
    }.items()
    for language in languages.split()
}  # fmt: skip
"""Language whose marks or spaces sentencex does not know -> the marks that end a sentence."""

_KEPT_BEFORE_FIGURES = frozenset("als bar ca cs da de fi gsw lb nds sk".split())
"""Languages in which sentencex never ends a sentence before a figure."""
# "measures 38 mm. The next": sentencex takes units for abbreviations within a sentence
_UNIT_AT_END = re.compile(r"(?<=\d )(?:mm|cm|km|kg)\.\s++(?=[^\W\d_a-z])")
_FIGURE_AFTER_END = re.compile(r"([.!?…] )\d")
_GERSHAYIM = re.compile("(?<=[א-ת])\"(?=[א-ת])")


def _split_thai(text: str) -> list[str]:
    """Split at spaces, which separate sentences but also phrases, names and figures: Thai has no full stop.

    A sentence begins with a word that opens one ("after", "in the year"), or with a long run without spaces that does
    not begin with a word that continues one ("and", "of", "is").
    """
    cuts = []
    start = previous = depth = 0
    for space in _THAI_SPACE.finditer(text):
        depth = max(0, depth + text.count("(", previous, space.start()) - text.count(")", previous, space.start()))
        previous = space.start()
        length = space.start() - start
        if depth or length < _MIN_THAI_CHARACTERS or _THAI_UNFINISHED.search(text, max(start, previous - 8), previous):
            continue
        # An opening phrase may be short, and may also belong to the words before, mostly to a figure
        if _THAI_OPENER.match(text, space.end()):
            is_end = length >= _MIN_THAI_BEFORE_OPENER and not text[previous - 1].isdigit()
        else:
            is_end = _THAI_CLAUSE.match(text, space.end()) is not None
        if is_end:
            cuts.append(space.end())
            start = space.end()
    return _cut(text, cuts)


_MIN_THAI_CHARACTERS, _MIN_THAI_BEFORE_OPENER = 20, 25
_THAI_SPACE = re.compile(r"[ \n]++")
# ๆ repeats the word before it: it may end a sentence, as any letter
_THAI_UNFINISHED = re.compile(r"(?:[,:–-]|และ|หรือ|กับ|ได้แก่|เช่น|คือ|ว่า|โดย|ของ|นั้น)$")
_THAI_OPENERS = (
    "นอกจาก อย่างไรก็ ต่อมา หลังจาก ปัจจุบัน ใน ระหว่าง ตั้งแต่ จากนั้น ดังนั้น สำหรับ แต่ละ ทุก เขา เธอ มัน พวกเขา โดยปกติ"
)
_THAI_OPENER = re.compile(f"[\"“]?(?:{'|'.join(_THAI_OPENERS.split())})")
_THAI_CONTINUATIONS = (
    "และ แต่ โดย ซึ่ง ที่ หรือ รวม เพื่อ เนื่องจาก เพราะ จน ทำให้ เช่น คือ เป็น มี ได้ ถูก อยู่ จาก ของ กับ แก่ ต่อ จึง ก็ ไป มา ด้วย ตลอดจน อัน "
    "ว่า ไม่ จะ ยัง แล้ว ถึง ประมาณ คน ล้าน ปี ๆ ฯลฯ กว่า พ.ศ ค.ศ เมื่อ ทั้ง ส่วน สู่ ให้ ใกล้ ทาง ตาม พร้อม นั้น เท่านั้น แห่ง บน ต่าง จำนวน อีก ตัด ตั้ง "
    "เคย แสดง เรื่อง จัด"
)
_THAI_CLAUSE = re.compile(rf"[\"“]?(?!{'|'.join(_THAI_CONTINUATIONS.split())})[\u0e01-\u0e2e\u0e40-\u0e44]\S{{24,}}")
"""A run of at least 25 characters that begins with none of the words that continue a sentence."""


# Boundaries that are removed


def _starts_in_bracket(parts: Sequence[str]) -> Sequence[bool]:
    """Return for each part whether it starts inside a bracket that one of the next four parts closes; () if none."""
    depths = [0]
    for part in parts:
        depth = depths[-1]
        for opening, closing in _BRACKETS if not part.isascii() else _ASCII_BRACKETS:
            if opening in part or closing in part:
                depth += part.count(opening) - part.count(closing)
        depths.append(depth if depth > 0 else 0)
    if not any(depths):
        return ()
    return [min(depths[index + 1 : index + 5]) < depths[index] for index in range(len(parts))]


_ASCII_BRACKETS = ("()", "[]")
_BRACKETS = (*_ASCII_BRACKETS, "（）", "「」", "『』", "《》", "【】")


def _continues(end: str, start: str, language: str) -> bool:
    """Return True if a sentence ending in `end` continues with the part `start`."""
    last = end[-1]
    if start[0] in ")]”»,;/）」』】、，" or last in "」』" and "\u3041" <= start[0] <= "\u309f":  # 「…。」と言った
        return True
    if not start[0].isupper() and (letter := _FIRST_LETTER.match(start)):
        if letter[1].islower() and not "\u10d0" <= letter[1] <= "\u10ff":  # Georgian has no capitals in use
            return True
    if last in ".)" and len(end) <= 4 and _NUMBER.match(end):
        return True
    if last != ".":
        return False
    if start[0].isdigit() and _TAKES_NUMBER.search(end, max(0, len(end) - 6)):
        return True
    if language in _ORDINAL_LANGUAGES and end[-2:-1] in _ORDINAL_ENDS and (ordinal := _ORDINAL.search(end, max(0, len(end) - 40))):
        return ordinal["roman"] is None or language in _ROMAN_FIRST or not ordinal["name"]
    abbreviations = _ABBREVIATIONS.get(language)
    return abbreviations is not None and abbreviations.search(end, max(0, len(end) - 12)) is not None


# The first letter, behind a dash, quotation marks or brackets
_FIRST_LETTER = re.compile(r"[\"'“”„«»‘’‹›(\[\s–—-]*+([^\W\d_])")
_NUMBER = re.compile(r"(?:^|[;,:] )\(?\d{1,2}[.)]$")
_TAKES_NUMBER = re.compile(r"\b(?:[Vv]ol|[Nn]os?|[Ff]igs?|[Oo]p|[Cc]h|Art|[Ss]ec|[Pp]p?|[Ee]qs?|[Vv]v?|[Nn]r)\.$")

_ORDINAL_LANGUAGES = frozenset(
    "als az bar bs cs da de dsb et eu fi fo fy gsw hr hsb hu is lb lt lv nb nds nn no pl sh sk sl sr stq tr".split()
)
"""Languages that write ordinal numbers as figures with a full stop: "im 13. Jahrhundert", "II. Dünya Savaşı"."""
_ROMAN_FIRST = frozenset("az et eu fi hu lt lv tr".split())
"""Those in which the number of a monarch precedes the name: "II. Frigyes"; elsewhere "Friedrich II." may end a sentence."""
_ORDINAL_ENDS = frozenset("0123456789IVXL")
_ORDINAL = re.compile(r"(?P<name>[^\W\d_a-z]\w++ )?(?<![\w.,])(?:\d{1,2}0?|(?P<roman>[IVXL]+))\.$")

_ABBREVIATIONS = {
    language: re.compile(rf"(?<![\w.])(?:{'|'.join(re.escape(word) for word in words.split())})\.$", re.IGNORECASE)
    for language, words in {
        "be": "акад гл ім праф св см стар т.зв вул г.зв",
        "bg": "акад бул вж гр инж им напр о-в проф пл св св.св т.нар ул",
        "ca": "av dr dra c ca cap ex fig núm p pàg prof sr sra st sta vol",
        "cs": "cca čp čs gen ing např mgr mjr npor odst plk prof sv tzv ul viz vl zv",
        "da": "bl.a ca dr eks f.eks fhv hhv kap nr pga prof s.k skt såk",
        "de": "abb art bd betr bspw bzw ca dipl dr evtl fig ggf hl hrsg ing kap lt max med mind nr prof sog st str tab urspr vgl vlg",
        "el": "αγ αρ βλ δηλ δρ καθ κ κεφ λ.χ π.χ σελ τηλ",
        "es": "av dr dra gral ing lic núm p.ej pág prof sr sra srta sta sto vol",
        "et": "hr jt lk mag nn näit nr nt pr prof pühak s.t st t vrd",
        "fi": "esim fil kts ks lk maist n ns nro prof puh seur tri ts va vrt",
        "fr": "art av bd ch dr env fig gén mgr mlle mme no p.ex pp prof st ste vol",
        "hr": "akad al bl br čl dipl dr el engl franc gđa inž kard lat mr mons njem npr o.g odn pok prof prim reg sv str tal tj tzv ul usp vl",
        "hu": "bp cca dr gr ifj ill id ker kb kh kör l ld mgr mo ny ő özv pl prof ps st sz szt szül tvr u.i ui ún vm vö",
        "hy": "ակադ Մ պրոֆ փող Ս սբ",
        "it": "arch art avv dott dr ecc fig ing mons n p.es pag prof sen sig st vol",
        "ka": "ანუ დაახ ე.ი ე.წ იხ მაგ მდ მთ პროფ წმ ქ",
        "lt": "a akad d doc dr g gen k kun m mst pan pav pr prof pvz r šv t.y vad vysk žr",
        "lv": "akad asoc dr g gs iel kap kpt nod piem plkv prof sal sk sv t.s u.c",
        "mk": "бул ген гр д-р на.пр проф св ул",
        "nb": "bl.a ca dr f.eks hhv jf kl mr nr pga prof skt st",
        "nl": "bijv blz ca dhr dr drs ds fig gebr ir jhr jr mevr mgr mr nl nr ong o.a p prof red resp sr st ver vgl zgn",
        "pl": "adm al ang bł bp br dot dr fr franc gen hab hist hr im in inż it jez kard ks łac lek m.in mgr mjr n.p nad niem np nr o ob ok os p pl płk pn por pow prof pw pt red ros rtm rys s. śp św tab tj tzw ul wg woj wł wł zał zm zob zw",
        "pt": "av cap cf dr dra eng ex fig gen núm p.ex pág prof profa sr sra sta sto vol",
        "ro": "acad art av cca cf col conf dr ex fig gen ing nr pag pct prof sf str vol",
        "ru": "акад бульв гл гр ген др-р им инж ин-т кн мн напр о-в оз пер пл пос проф просп пр-т р св см ср ст стр т.н т.наз тов ул хр",
        "sk": "ca čl gen ing mgr napr odd prof resp sv tzv ul",
        "sl": "angl akad dr fr ga gl inž it lat mag mdr nem npr odst ok oz prof prim sv st t.i tj tim ul",
        "sr": "акад бр бул вид гл др ген енгл инж итал кнез лат нем нпр проф св стр тзв тј ул франц",
        "sv": "bl.a ca dr d.v.s ev f.d f.k fr hr jfr kap kl max min nr prof resp s.k sid st t.ex tekn urspr",
        "tr": "alb apt av bkz bşk cad doç dr gen hz ing mah mim no nu ord örn prof sn sok st tic vb yrd yy yzb",
        "uk": "акад бул вул гл гр див ім інж кн наз напр о-в оз пл пор проф просп р рис св ст т.зв т.з тзв",
    }.items()
}  # fmt: skip
"""Language -> abbreviations that always precede a word, beyond those that sentencex knows."""

_SENTENCE_IN_BRACKETS = re.compile(
    r"\([^()a-z](?:[^()]++|\([^()]*+\))++(?:(?<=[.!?])|(?<=[.!?][\"”’]))\) (?=[^\W_a-z]|[\"“])"
)
"""It starts with a capital and has at least a few words, unlike "(U.S.) Army"."""


def _split_brackets(sentence: str) -> list[str]:
    """Split off a sentence in brackets at the start."""
    if sentence[0] != "(" or (match := _SENTENCE_IN_BRACKETS.match(sentence)) is None:
        return [sentence]
    inside = match[0].strip()
    return [inside, sentence[match.end() :].strip()] if inside.count(" ") >= 3 else [sentence]
