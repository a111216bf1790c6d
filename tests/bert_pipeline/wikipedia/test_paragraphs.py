"""Wikitext becomes the passages that a reader sees: cases by rule, in tests/data/wikitext/passages."""

from pathlib import Path

import pytest

from bert_pipeline.wikipedia.dump import read_site
from bert_pipeline.wikipedia.extract import extract

FOLDER = Path(__file__).parents[2] / "data" / "wikitext" / "passages"
SITE = read_site('<mediawiki xml:lang="en"><namespace key="6" case="first-letter">File</namespace>')


def read_cases(path: Path) -> list[object]:
    """The cases of a file: a name after "###", the wikitext, "---", and the passages parted by blank lines."""
    cases = []
    for block in path.read_text(encoding="utf-8").split("\n### ")[1:]:
        name, _, rest = block.partition("\n")
        wikitext, _, expected = rest.rpartition("\n---")
        passages = [passage for passage in expected.strip().split("\n\n") if passage]
        cases.append(pytest.param(wikitext, passages, id=f"{path.stem}: {name}"))
    return cases


@pytest.mark.parametrize(
    ("wikitext", "passages"), [case for path in sorted(FOLDER.glob("*.txt")) for case in read_cases(path)]
)
def test_passages_are_what_a_reader_sees_as_prose(wikitext: str, passages: list[str]) -> None:
    assert extract(wikitext, SITE, "Some Title").passages == passages


def test_a_few_hundred_cases_cover_the_rules() -> None:
    files = {path.stem: len(read_cases(path)) for path in FOLDER.glob("*.txt")}
    assert {"emphasis", "links", "lists", "magic_words", "references", "scars", "tables", "tags", "unclosed"} <= set(
        files
    )
    assert sum(files.values()) >= 250


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_every_file_of_cases_says_where_its_rules_stand_or_what_they_are(path: Path) -> None:
    assert path.read_text(encoding="utf-8").startswith("# ")
