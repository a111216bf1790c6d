"""mwparserfromhell's `strip_code` over a dump, for its own environment: `python strip_code.py DUMP OUTPUT`.

Requires mwparserfromhell and the standard library only. Reads articles only, in one pass, and writes one file.
"""

import bz2
import sys
import xml.etree.ElementTree as ElementTree

import mwparserfromhell


def main(source: str, target: str) -> None:
    """Write the stripped text of every article."""
    opened = bz2.open(source, "rb") if source.endswith(".bz2") else open(source, "rb")  # noqa: SIM115
    with opened as stream, open(target, "w", encoding="utf-8") as output:
        root = None
        for event, element in ElementTree.iterparse(stream, events=("start", "end")):
            root = element if root is None else root
            if event == "start" or not element.tag.endswith("}page"):
                continue
            schema = element.tag[: element.tag.index("}") + 1]
            text = element.findtext(f"{schema}revision/{schema}text") or ""
            is_article = element.findtext(f"{schema}ns") == "0" and element.find(f"{schema}redirect") is None
            if is_article:
                output.write(f"{mwparserfromhell.parse(text).strip_code()}\n\n")
            root.clear()


if __name__ == "__main__":
    main(*sys.argv[1:])
