"""Most frequent inline templates of articles: `python -m benchmarks.template_usage DUMP...`

Counts the calls in article pages, each title once over all dumps, and prints one line per template: calls, pages,
name. Names that share a block of the template cases count together, as do the codes of `{{lang-…}}` and `{{IPA-…}}`.
Templates that show text come first; those without a renderer follow, most used first, which shows gaps.

With --share, each dump is one line instead: the calls in lines of running text, the percentages of them that show text,
that are known to show none, and that no template file has, and the names of the last, most used first.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

from benchmarks.harness import errors_as_exit_codes, program
from bert_pipeline.wikipedia.dump import open_dump, read_pages
from bert_pipeline.wikipedia.expand import match_brackets
from bert_pipeline.wikipedia.extract import drop_reason
from bert_pipeline.wikipedia.markup import drop_opaque_tags, drop_tables
from bert_pipeline.wikipedia.templates import load_wiki, normalize_name, show_nothing

CASES = Path(__file__).resolve().parent.parent / "tests" / "data" / "wikitext"
CASE_FILES = ("templates.txt", "convert.txt")
MAX_WITHOUT_RENDERER = 200
MAX_UNKNOWN = 12
_SILENT = re.compile(r"<!--.*?-->|<nowiki>.*?</nowiki>", re.DOTALL | re.IGNORECASE)
_CALL = re.compile(r"(?<!\{)(?:\{\{|\{{5})([^{}|<>\[\]\n:#]++)\n?(?=\||\}\})")
"""Not `{{{argument}}}`, and no parser function, whose name a colon ends."""
_FIRST_CALL = re.compile(r"\{\{([^{}|]++)")
_FAMILIES = {"lang-": "lang-x", "ipa-": "ipa-xx"}
"""Prefixes of templates with one name per language, and the name that they count as."""


def called_names(wikitext: str) -> Iterator[str]:
    """Yield the normalized name of every called template."""
    for name in _CALL.findall(_SILENT.sub("", wikitext)):
        yield normalize_name(name)


def read_blocks(paths: Iterable[Path]) -> dict[str, str]:
    """Return the title of the template block for every name called in the cases.

    A template's own block comes first; otherwise the first block with a case that begins with the name.
    """
    titles: dict[str, str] = {}
    blocks: dict[str, str] = {}
    for path in paths:
        title = ""
        for line in path.read_text(encoding="utf-8").splitlines():
            if line.startswith("@ "):
                page = unquote(line.rpartition("/wiki/")[2])
                title = normalize_name(page.removesuffix("/doc")) if page.startswith("Template:") else ""
                titles[title] = title
            elif title and not line.startswith(("#", "source:")) and (call := _FIRST_CALL.search(line)):
                blocks.setdefault(normalize_name(call[1]), title)
    return {**blocks, **titles}


def title_of(name: str, blocks: Mapping[str, str]) -> str:
    """Return the template under which a name counts."""
    for prefix, family in _FAMILIES.items():
        if name.startswith(prefix) and (prefix == "ipa-" or blocks.get(name, family) == family):
            return family  # {{lang-zh}} is more than its language
    return blocks.get(name, name)


def count_calls(paths: Iterable[str], blocks: Mapping[str, str]) -> tuple[Counter[str], Counter[str]]:
    """Return calls and pages of each template in the articles of the dumps; repeated titles count once."""
    calls: Counter[str] = Counter()
    pages: Counter[str] = Counter()
    seen: set[str] = set()
    for path in paths:
        dump = open_dump(path)
        for page in read_pages(dump):
            if page.title in seen or drop_reason(page, dump.site):
                continue
            seen.add(page.title)
            of_page = Counter(title_of(name, blocks) for name in called_names(page.text))
            calls += of_page
            pages.update(of_page.keys())
    return calls, pages


def is_inline(title: str) -> bool:
    """Return True if a template shows text in its sentence."""
    return title in _FAMILIES.values() or load_wiki("en").find(title) not in (None, show_nothing)


MIN_LETTERS = 20
"""Least letters beside the templates of a line of running text."""


def inline_calls(wikitext: str) -> Iterator[str]:
    """Yield the normalized name of every template that is called in a line of running text, not those in templates."""
    text = drop_tables(drop_opaque_tags(wikitext, Counter()), Counter())
    spans: list[tuple[int, int]] = []
    for start, end, width in match_brackets(text):
        if text[start] == "{" and width == 2 and (not spans or start >= spans[-1][1]):
            spans.append((start, end))
    # A line ends outside of templates; what is in them is no text of it.
    position, line, names = 0, "", list[str]()
    for start, end in [*spans, (len(text), len(text))]:
        *finished, rest = text[position:start].split("\n")
        for part in finished:
            yield from _names_of_line(line + part, names)
            line, names = "", []
        line += rest
        names.append(normalize_name(re.split(r"[|\n<]|\}\}", text[start + 2 : end], maxsplit=1)[0]))
        position = end
    yield from _names_of_line(line, names[:-1])


def _names_of_line(line: str, names: list[str]) -> list[str]:
    is_running = line[:1] not in tuple("*#;:|!=") and sum(map(str.isalpha, line)) >= MIN_LETTERS
    return names if is_running else []


def measure_share(path: str) -> tuple[int, int, Counter[str]]:
    """Return the calls in running text, those known to show none, and the names that no template file has."""
    dump = open_dump(path)
    wiki = load_wiki(dump.site.language)
    calls: Counter[str] = Counter()
    for page in read_pages(dump):
        if not drop_reason(page, dump.site):
            calls.update(inline_calls(page.text))
    renderers = {name: wiki.find_call(name)[1] for name in calls}
    unknown = Counter({name: count for name, count in calls.items() if renderers[name] is None})
    return calls.total(), sum(calls[name] for name in calls if renderers[name] is show_nothing), unknown


def rank(calls: Mapping[str, int], pages: Mapping[str, int]) -> list[tuple[int, int, str]]:
    """Return calls, pages and title, by calls, then pages, then name."""
    return sorted(((calls[title], pages[title], title) for title in calls), key=lambda row: (-row[0], -row[1], row[2]))


@errors_as_exit_codes
def main(arguments: Sequence[str] | None = None) -> int:
    """Count and print."""
    parser = program("template_usage", __doc__)
    parser.add_argument("dumps", nargs="+", metavar="DUMP")
    parser.add_argument("--share", action="store_true", help="print the share of inline calls that the files know")
    options = parser.parse_args(arguments)
    if options.share:
        for dump in options.dumps:
            total, silent, unknown = measure_share(dump)
            counts = (total - silent - unknown.total(), silent, unknown.total())
            names = ", ".join(f"{name} {count}" for name, count in unknown.most_common(MAX_UNKNOWN))
            shares = [f"{100 * count / max(total, 1):.1f}" for count in counts]
            print(Path(dump).name.partition("-")[0], total, *shares, names, sep="\t")
        return 0
    rows = rank(*count_calls(options.dumps, read_blocks(CASES / name for name in CASE_FILES)))
    for row in rows:
        if is_inline(row[2]):
            print(*row, sep="\t")
    print("\nwithout a renderer")
    for row in [row for row in rows if not is_inline(row[2])][:MAX_WITHOUT_RENDERER]:
        print(*row, sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(main())
