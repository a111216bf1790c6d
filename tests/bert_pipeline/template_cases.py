"""Cases of templates in tests/data/wikitext: what a call shows, where it is documented, and how the text is known."""

from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from bert_pipeline.wikipedia.dump import read_site
from bert_pipeline.wikipedia.extract import extract

DATA = Path(__file__).parent.parent / "data" / "wikitext"


class Case(NamedTuple):
    """One call of a template."""

    call: str
    text: str
    """What a reader sees of it."""
    address: str
    """Of the template's documentation."""
    source: str
    """What was read to know the text: "documentation https://…", "knowledge"; "" where the file does not say."""

    @property
    def language(self) -> str:
        """Of the wiki: "fr" of https://fr.wikipedia.org/wiki/Modèle:Date."""
        return urlsplit(self.address).netloc.partition(".")[0]


def read_cases(name: str) -> list[Case]:
    """The cases of a file: "call => text" lines below their "@ address" and "source: …" lines; "#" is a comment."""
    cases = []
    address = source = ""
    for line in (DATA / name).read_text(encoding="utf-8").splitlines():
        if line.startswith("@ "):
            address, source = line[2:], ""
        elif line.startswith("source: "):
            source = line.removeprefix("source: ")
        elif line and not line.startswith("#"):
            call, arrow, text = line.partition(" =>")
            assert arrow, f"{name}: no arrow in {line!r}"
            cases.append(Case(call, text.strip(), address, source))
    return cases


def show(call: str, language: str = "") -> str:
    """What a reader sees of a call in the middle of a sentence, on the wiki of a language; "¶" parts paragraphs."""
    site = read_site(f'<mediawiki xml:lang="{language}">')
    shown = " ¶ ".join(extract(f"It is said that {call} was the whole of it.", site, "Some Title").passages)
    assert shown.startswith("It is said that ")
    assert shown.endswith(" was the whole of it.")
    return shown.removeprefix("It is said that ").removesuffix("was the whole of it.").strip()
