"""Coordinates in running text read as the reader sees them."""

import pytest

from bert_pipeline.wikipedia.dump import read_site
from bert_pipeline.wikipedia.extract import extract

SITE = read_site('<mediawiki xml:lang="en">')


@pytest.mark.parametrize(
    ("call", "shown"),
    [  # https://en.wikipedia.org/wiki/Template:Coord
        ("{{coord|43.651234|-79.383333}}", "43.651234°N 79.383333°W"),
        ("{{coord|43.65|N|79.38|W}}", "43.65°N 79.38°W"),
        ("{{coord|43|29|N|79|23|W|type:city}}", "43°29′N 79°23′W"),
        ("{{Coord|43|29|4|N|79|23|0|W|region:CA|display=inline}}", "43°29′4″N 79°23′0″W"),
        ("{{coord|43.4|N|79.2|W|display=inline,title}}", "43.4°N 79.2°W"),
    ],
)
def test_coordinates_are_written_with_their_signs(call: str, shown: str) -> None:
    assert extract(f"The town lies at {call} in a valley.", SITE).passages == [f"The town lies at {shown} in a valley."]


@pytest.mark.parametrize("call", ["{{coord|43|N|79|W|display=title}}", "{{coord|x}}", "{{coord|43}}", "{{coord}}"])
def test_coordinates_of_the_title_and_broken_ones_show_nothing(call: str) -> None:
    assert extract(f"The town lies in a valley ({call}).", SITE).passages == ["The town lies in a valley."]
