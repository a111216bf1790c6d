"""Small MediaWiki exports."""

from pathlib import Path

HEADER = (Path(__file__).parents[1] / "data" / "wikitext" / "export_header.xml").read_text(encoding="utf-8")
FOOTER = "</mediawiki>\n"


def make_page(number: int, text: str = "", *, title: str = "", head: str = "<ns>0</ns>", tail: str = "") -> str:
    return f"""  <page>
    <title>{title or f"Page {number}"}</title>
    {head}
    <id>{number}</id>
    <revision>
      <id>{number * 10}</id>
      <timestamp>2020-01-01T00:00:00Z</timestamp>
      <contributor><username>U</username><id>7</id></contributor>
      <model>wikitext</model>
      <format>text/x-wiki</format>
      <text bytes="3" xml:space="preserve">{text or f"Text of {number}."}</text>{tail}
    </revision>
  </page>
"""


def make_export(*pages: str, language: str = "bg") -> str:
    return HEADER.replace('"bg"', f'"{language}"') + "".join(pages) + FOOTER
