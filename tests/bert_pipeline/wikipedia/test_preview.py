"""The preview prints each passage to the right of the line that it begins in."""

import html
from pathlib import Path

import pytest
from small_exports import make_export, make_page

from bert_pipeline.errors import InputError
from bert_pipeline.wikipedia.preview import preview_article

FILLER = "\n".join(f"* item {number} of a long list" for number in range(30))


def preview_rows(folder: Path, wikitext: str) -> list[tuple[str, str]]:
    """Return (wikitext, passage) of each row of the preview."""
    dump = folder / "dump.xml"
    page = make_page(1, html.escape(wikitext, quote=False), title="T")
    dump.write_text(make_export(page, language="en"), encoding="utf-8")
    rows = []
    for row in preview_article("T", dump).splitlines()[4:]:
        left, _, right = row.partition(" | ")
        rows.append((left.strip(), right.strip()))
    return rows


@pytest.mark.parametrize(
    "wikitext",
    [
        # a later line begins with the same words
        f"The first of them is '''red''' and old.\n{FILLER}\nThe first of them is mentioned again, being blue.",
        # a caption before it begins with the same words
        "[[File:A.jpg|thumb|The tower of the town is high.]]\nThe tower of the town is '''high''' and built late.",
        # the same sentence occurs twice
        f"One and the same sentence.\n{FILLER}\nSomething else is here.\n{FILLER}\nOne and the same sentence.",
        # markup in every one of its first words
        f"''The'' [[a|red]] {{{{nowrap|old}}}} '''house''' of theirs.\n{FILLER}\nThe red old house of theirs again.",
    ],
    ids=["later line", "caption", "twice", "markup"],
)
def test_passage_is_in_the_row_of_its_first_line(tmp_path, wikitext):
    rows = preview_rows(tmp_path, wikitext)
    prose = [line for line in wikitext.split("\n") if not line.startswith(("*", "[[File"))]
    with_passage = [left for left, right in rows if right and left in prose]
    assert with_passage == prose
    assert all(not right for left, right in rows if left not in prose)


def test_passages_of_one_line_are_in_rows_below_each_other(tmp_path):
    rows = preview_rows(tmp_path, "One stands here.<p>Two stands here.</p>\n\nThree stands here.")
    assert [right for _, right in rows if right] == ["One stands here.", "Two stands here.", "Three stands here."]
    assert ("Three stands here.", "Three stands here.") in rows


def test_passages_are_printed_once_and_in_order(tmp_path):
    sentences = [f"The {number}th sentence is like the others but for its number." for number in range(200)]
    rows = preview_rows(tmp_path, "\n\n".join(sentences))
    assert [right for _, right in rows if right] == sentences
    assert all(left == right for left, right in rows if right)


def test_preview_uses_template_files_and_lists_unknown_templates(tmp_path):
    (tmp_path / "own.toml").write_text('[templates]\n"people" = "some {1} people"\n', encoding="utf-8")
    text = "In this old town live {{people|500}} and{{others|5}} today{{cn}}."
    export = make_export(make_page(1, text, title="T"), language="en")
    (tmp_path / "dump.xml").write_text(export, encoding="utf-8")
    shown = preview_article("T", tmp_path / "dump.xml", templates=str(tmp_path / "own.toml"))
    assert "| In this old town live some 500 people and today." in shown
    assert "Dropped templates: others (1)." in shown


def test_title_may_be_written_as_in_an_address_and_the_nearest_is_suggested(tmp_path):
    page = make_page(1, "{{Infobox|a}}\nThe first passage is here.", title="Ada Lovelace")
    (tmp_path / "dump.xml").write_text(make_export(page), encoding="utf-8")
    assert "infobox (1)" in preview_article("ada_Lovelace", tmp_path / "dump.xml")
    with pytest.raises(InputError, match="did you mean 'Ada Lovelace'"):
        preview_article("Ada Lovelaec", tmp_path / "dump.xml")
