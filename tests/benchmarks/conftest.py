"""A dump of eight short articles for the benchmark programs."""

from pathlib import Path

import pytest

DUMP = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">
  <siteinfo>
    <dbname>smallwiki</dbname>
  </siteinfo>
{}</mediawiki>
"""
PAGE = """  <page>
    <title>Town {0}</title>
    <ns>0</ns>
    <id>{0}</id>
    <revision>
      <id>{0}</id>
      <model>wikitext</model>
      <text bytes="1" xml:space="preserve">{1}</text>
    </revision>
  </page>
"""


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    path = tmp_path / "smallwiki.xml"
    sentences = " ".join(f"The river of the old town {word} is long and wide." for word in ("Aba", "Bel", "Cor", "Dun"))
    path.write_text(DUMP.format("".join(PAGE.format(n, f"Town {n} is on a river. {sentences}") for n in range(1, 9))))
    return path
