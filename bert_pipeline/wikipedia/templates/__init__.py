"""Templates whose text is part of the prose, as the files of each wiki in `data` describe them.

A template that is in no file is dropped, which is right for infoboxes, navigation, notices and citations. Nothing
depends on the date of the run. docs/templates.md describes the files; the functions that their entries name are in the
modules of this package, which importing it registers.
"""

from bert_pipeline.wikipedia.templates import chemistry, convert, dates, numbers, words  # noqa: F401 (they register)
from bert_pipeline.wikipedia.templates.files import canonical_language, load_wiki
from bert_pipeline.wikipedia.templates.registry import Arguments, Renderer, Wiki, normalize_name, show_nothing

__all__ = ["Arguments", "Renderer", "Wiki", "canonical_language", "load_wiki", "normalize_name", "show_nothing"]
