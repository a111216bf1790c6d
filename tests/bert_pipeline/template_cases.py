"""Template cases in tests/data/wikitext: a call, its text, its documentation, and how the text is known."""

from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from bert_pipeline.wikipedia.extract import extract
from bert_pipeline.wikipedia.site import read_site

DATA = Path(__file__).parent.parent / "data" / "wikitext"


class Case(NamedTuple):
    """One call of a template."""

    call: str
    text: str
    """The text that a reader sees."""
    address: str
    """Address of the template's documentation."""
    source: str
    """Where the text is from: "documentation https://…", "knowledge"; "" if the file has none."""

    @property
    def language(self) -> str:
        """Language of the wiki: "fr" of https://fr.wikipedia.org/wiki/Modèle:Date."""
        return urlsplit(self.address).netloc.partition(".")[0]


def read_cases(name: str) -> list[Case]:
    """Read the cases of a file: "call => text" lines below "@ address" and "source: …" lines; "#" is a comment."""
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


def read_rows(name: str) -> list[list[str]]:
    """Read a table of tests/data/wikitext; "#" at its beginning makes a line a comment, and \\n is an end of a line."""
    lines = (DATA / name).read_text(encoding="utf-8").splitlines()
    return [line.replace("\\n", "\n").split("\t") for line in lines if not line.startswith("# ")]


def render_call(call: str, language: str = "") -> str:
    """Return the text of a call in a sentence, on the wiki of a language; "¶" separates paragraphs."""
    site = read_site(f'<mediawiki xml:lang="{language}">')
    sentence = " ¶ ".join(extract(f"It is said that {call} was the whole of it.", site, "Some Title").passages)
    assert sentence.startswith("It is said that ")
    assert sentence.endswith(" was the whole of it.")
    return sentence.removeprefix("It is said that ").removesuffix("was the whole of it.").strip()
