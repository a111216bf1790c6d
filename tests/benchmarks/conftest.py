"""A dump of eight short articles for the benchmark programs."""

import pytest
from small_exports import make_export, make_page


@pytest.fixture
def dump(tmp_path):
    path = tmp_path / "smallwiki.xml"
    sentences = " ".join(f"The river of the old town {word} is long and wide." for word in ("Aba", "Bel", "Cor", "Dun"))
    pages = (make_page(n, f"Town {n} is on a river. {sentences}", title=f"Town {n}") for n in range(1, 9))
    path.write_text(make_export(*pages, language="en"))
    return path
