"""Template files: patterns, lookup of names, errors with their line."""

import re
import shutil
import tomllib
from collections import Counter
from pathlib import Path

import pytest

from bert_pipeline.errors import InputError
from bert_pipeline.wikipedia.extract import extract
from bert_pipeline.wikipedia.site import read_site
from bert_pipeline.wikipedia.templates import Arguments, Wiki, files, load_wiki, normalize_name
from bert_pipeline.wikipedia.templates.files import DATA, compile_pattern
from bert_pipeline.wikipedia.templates.registry import FUNCTIONS

LANGUAGES = sorted(path.stem for path in DATA.glob("*.toml"))


def call(pattern: str, *parts: str, name: str = "T") -> str | None:
    return compile_pattern(pattern, {"era": {"a": " BC", "*": ""}})(Arguments(name, parts, Wiki()))


@pytest.mark.parametrize(
    ("pattern", "parts", "text"),
    [
        ("{1|x}[ ({2})][ – {3}]", ["a", "b", "c"], "a (b) – c"),
        ("{1|x}[ ({2})][ – {3}]", ["a", "", "c"], "a – c"),
        ("{1|x}[ ({2})][ – {3}]", ["x=d", "b"], "b"),
        ("{1|x}[ ({2})][ – {3}]", ["", "b", "x=d"], "d (b)"),
        ("{1}[ ({2})]", ["", "b"], None),
        ("{0} {1}", ["5"], "T 5"),
        ("{*, }", ["a", "", "c"], "a, c"),
        ("{*}", ["a", "b"], "ab"),
        ("{1|'one'}-{2|x|'two'}", ["", "", "x=2"], "one-2"),
        ("{1:number} km", ["12345.6"], "12,345.6 km"),
        ("{1}{2:era}", ["44", "A"], "44 BC"),
        ("{1}[{2:era}]", ["44", "x"], "44"),
        (r"\[{1}\]", ["a"], "[a]"),
        (" – ", [], " – "),
        ("", ["a"], None),
    ],
)
def test_pattern_is_followed(pattern, parts, text):
    assert call(pattern, *parts) == text


def test_names_with_a_table_and_prefixes(tmp_path):
    (tmp_path / "own.toml").write_text(
        '[templates]\n"in {tongues}" = "{tongues}: {1}"\n"mine *" = "{0}"\n[tables.tongues]\nXX = "Xish"\n'
    )
    wiki = load_wiki("en", str(tmp_path / "own.toml"))
    for name, text in (("in xx", "Xish: a"), ("Mine too", "Mine too"), ("small", "a")):
        renderer = wiki.find(normalize_name(name))
        assert renderer is not None
        assert renderer(Arguments(name, ["a"], wiki)) == text
    assert wiki.find("mineral") is None


def test_own_file_replaces_entries_and_a_language(tmp_path):
    (tmp_path / "own.toml").write_text(
        '[templates]\n"small" = "<{1}>"\n"pop" = "{1:number}"\n[formats]\nnumber = "12\'345,6"\n'
    )
    page = "There are {{pop|123456}} of them and {{small|few}} in {{lang|fr|mots}} here."
    site = read_site('<mediawiki xml:lang="xx">')
    assert extract(page, site, templates=str(tmp_path / "own.toml")).passages == [
        "There are 123'456 of them and <few> in mots here."
    ]


def test_file_of_a_wiki_replaces_entries_of_its_language(tmp_path, monkeypatch):
    folder = shutil.copytree(DATA, tmp_path / "copy")
    (folder / "frwiktionary.toml").write_text('[templates]\n"s" = "{1}th"\n')
    monkeypatch.setattr(files, "DATA", folder)
    for dbname, text in (("frwiktionary", "It is the Vth here."), ("frwiki", "It is the Ve siècle here.")):
        site = read_site(f'<mediawiki xml:lang="fr"><siteinfo><dbname>{dbname}</dbname></siteinfo>')
        assert extract("It is the {{s|V}} here.", site).passages == [text]


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        ('[templates]\n\n"b" = "{1"', 3, "open brace"),
        ('[templates]\n"a" = "x"\n"b | c" = "[{1}"', 3, "without its ']'"),
        ('[templates]\n"b" = "{1}]"', 2, "without its partner"),
        ('[templates]\n"b" = "=nothing"', 2, "no function or template is called 'nothing'"),
        ('[templates]\n"b" = "{1:nothing}"', 2, "found 'nothing', expected one of"),
        ('[templates]\n"b*" = "x"', 2, "characters before its '*'"),
        ('[templates]\n"b" = 5', 2, "has no text"),
        ('[templates]\n"abc" = "x"\n"ab" = 5', 3, "has no text"),
        ('[templates]\n"in {towns}" = "x"', 2, "no table is called 'towns'"),
        ('[formats]\nnumber = "1234"', 2, "expected a number as the wiki writes it"),
        ('[formats]\nnumbers = "1"', 2, "found 'numbers'"),
        ('wiki = ""\n[template]\n"b" = ""', 2, "found 'template', expected one of"),
        ("[tables]\nx = 5", 2, "x is no table"),
        ('[templates]\n"b" = }', 2, "not TOML"),
    ],
)
def test_bad_file_is_refused_in_one_sentence_with_its_line(tmp_path, content, line, problem):
    path = tmp_path / "own.toml"
    path.write_text(content)
    with pytest.raises(InputError) as caught:
        load_wiki("en", str(path))
    message = str(caught.value)
    assert str(path) in message
    assert f"line {line}" in message
    assert problem in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "May 6, 1980"),
        ("de", "6. Mai 1980"),
        ("fr", "6 mai 1980"),
        ("hu", "1980. május 6."),
        ("ja", "1980年5月6日"),
        ("ru", "6 мая 1980"),
        ("xx", "1980-05-06"),
    ],
)
def test_date_is_written_as_in_the_language(language, text):
    wiki = load_wiki(language)
    renderer = wiki.find("birth date")
    assert renderer is not None
    assert renderer(Arguments("Birth date", ["1980", "5", "06"], wiki)) == text


def test_missing_file_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"own\.toml: cannot be read"):
        load_wiki("en", str(tmp_path / "own.toml"))


@pytest.mark.parametrize("language", LANGUAGES)
def test_every_file_names_its_wiki_and_normalized_names(language):
    content = tomllib.loads((DATA / f"{language}.toml").read_text(encoding="utf-8"))
    assert content["wiki"] == f"https://{'no' if language == 'nb' else language}.wikipedia.org"
    assert [name for name in load_wiki(language).renderers if normalize_name(name) != name] == []
    names = [normalize_name(name) for key in content.get("templates", {}) for name in key.split(" | ")]
    assert [name for name, count in Counter(names).items() if count > 1] == []


@pytest.mark.parametrize("language", LANGUAGES)
def test_no_entry_fails_on_missing_and_odd_arguments(language):
    wiki = load_wiki(language)
    for parts in (
        [],
        [""],
        ["", "", ""],
        ["x"],
        ["-"],
        ["=", "a=b"],
        ["1", "2", "3", "4", "5", "6"],
        ["9" * 400] * 3,
        ["1", "e6" * 5000 + "m"],
    ):
        for name, render in (wiki.renderers | wiki.prefixes | wiki.functions).items():
            text = render(Arguments(name, parts, wiki, "Title"))
            assert text is None or isinstance(text, str), name


def test_every_function_is_documented_and_used():
    page = (Path(__file__).parents[3] / "docs" / "templates.md").read_text(encoding="utf-8")
    assert [name for name in FUNCTIONS if f"`{name}`" not in page] == []
    used = "".join(path.read_text(encoding="utf-8") for path in DATA.glob("*.toml"))
    assert [name for name in FUNCTIONS if f'"={name}"' not in used] == []


def test_both_codes_of_norwegian_read_its_templates():
    assert load_wiki("nb").number == load_wiki("no").number != load_wiki("en").number
    assert load_wiki("simple").is_english


def test_template_file_with_byte_order_mark_and_unknown_key(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text('[templates]\nfoo = { text = "x", source = "y" }\n', encoding="utf-8-sig")
    assert "foo" in {name.lower() for name in load_wiki("en", str(path)).renderers}
    path = tmp_path / "typo.toml"
    path.write_text('[templates]\nfoo = { text = "x", typo = "y" }\n', encoding="utf-8")
    with pytest.raises(InputError, match=re.escape("line 2: 'foo' has 'typo'")):
        load_wiki("en", str(path))
