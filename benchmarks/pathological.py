"""Pages of malformed markup: seconds for five megabytes of each kind.

`python -m benchmarks.pathological [MEGABYTES]` prints a table, the slowest first.
"""

import sys
import time

from bert_pipeline.wikipedia.extract import extract
from bert_pipeline.wikipedia.site import read_site

UNITS = {
    "open templates": "{{a|",
    "known open templates": "{{nowrap|",
    "known templates": "{{nowrap|x}}",
    "closing braces": "}}",
    "opening braces": "{{",
    "five opening braces": "{{{{{",
    "odd braces": "{{{a|",
    "open links": "[[a|",
    "opening brackets": "[[[[[",
    "opening brackets with spaces": "[[ ",
    "links and braces": "[[{{",
    "closing before opening": "]]}}[[{{",
    "all closing": "]]}}|}</ref>-->",
    "all opening": "[[{{{|<ref><!--",
    "everything at once": "[[a|{{b|{|''<ref>(-{__X__&amp;<br>",
    "open file links": "[[File:a|",
    "open categories": "[[Category:",
    "tables": "\n{|\n|",
    "tables on one line": "{|{|",
    "rows": "\n|-\n| a || b",
    "table ends": "\n|}",
    "references never closed": "<ref>x",
    "references in references": "<ref><ref>",
    "references": "<ref>x</ref>",
    "references with an open quote": '<ref name="',
    "open tags": "<div ",
    "tags in attributes": "<span style='<b",
    "comments never closed": "<!--",
    "broken comments": "<!-",
    "nowiki": "<nowiki>",
    "empty nowiki after quotes": "''<nowiki/>",
    "formulas": "<math>",
    "galleries": "<gallery>",
    "block quotations": "<blockquote>",
    "lists by tag": "<ul>",
    "tables by tag": "<table>",
    "boxes": '<div class="thumb">',
    "hidden": '<span style="display:none',
    "breaks": "<br>",
    "breaks apart": "<br> \n",
    "superscripts": "<sup>1",
    "section marks": '<section begin="a"/>',
    "external links": "[http://a",
    "external links with a label": "[http://a b",
    "five apostrophes": "'''''",
    "apostrophes": "'''a''b",
    "variants": "-{a",
    "variants in variants": "-{-{",
    "magic words": "__A",
    "broken entities": "&am",
    "ampersands": "&",
    "entities of markup": "&#39;",
    "equals signs": "=",
    "pipes": "|",
    "spaces": " \t",
    "indented lines": "\n a b",
    "indents": "\n ",
    "stars": "\n*",
    "parentheses": "(",
    "spaces in parentheses": "( ",
    "spaces before full stops": " .",
    "letters": "x",
    "words": "word ",
    "short paragraphs": "a.\n\n",
    "dropped between punctuation": "a <ref/> , ( <math/> ) ",
    "dropped in brackets": "({{x}} ",
    "dropped in closed brackets": "({{x}})",
    "dropped between commas": ", {{x}} ,",
    "dropped in quotes": '"{{x}}"',
    "dropped between dashes": "– {{x}} ",
    "unknown values": "({{CURRENTYEAR}}",
    "unknown values in brackets": "(({{CURRENTYEAR}})",
    "formulas in a row": "<math/>, ",
    "formulas in a sentence": "such that <math/> for every ",
    "formulas in brackets": "(one two three four five six <math/>",
    "sounds": "{{IPA|a}}, ",
    "sounds in brackets": "({{IPA|a}} ",
    "sounds of a language": "{{IPA-xx|a|}} ",
    "unknown languages": "{{lang-qqq|a",
    "arguments": "{{nowrap|a|b|c=d",
    "quotations": "{{quote|",
    "formulas of chemistry": "{{chem2|a(",
    "coordinates": "{{coord|1|N|1|E}} ",
    "conversions": "{{convert|1|to|",
}
"""Text that a page repeats, by name."""


def seconds_of(unit: str, num_characters: float) -> float:
    """Return the processor seconds to extract one page of so many characters."""
    text = "Prose. " + unit * (int(num_characters) // len(unit))
    site = read_site("")
    start = time.process_time()
    extract(text, site)
    return time.process_time() - start


def main(megabytes: str = "5") -> None:
    """Print the seconds of each."""
    found = {name: seconds_of(unit, float(megabytes) * 1e6) for name, unit in UNITS.items()}
    for name, seconds in sorted(found.items(), key=lambda item: -item[1]):
        print(f"{name:32} {seconds:6.2f} s")


if __name__ == "__main__":
    main(*sys.argv[1:])
