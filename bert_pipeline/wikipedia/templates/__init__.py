"""Renderers of inline templates whose text is part of the prose.

A template that is not registered is dropped, which is right for infoboxes, navigation, notices and citations. Nothing
depends on the date of the run. What each template renders as is taken from its documentation on the English Wikipedia,
https://en.wikipedia.org/wiki/Template:NAME; those of other Wikipedias are in `local`. Importing this package registers
them all.
"""

from bert_pipeline.wikipedia.templates import (  # noqa: F401 (they register their renderers)
    chemistry,
    coordinates,
    dates,
    foreign_words,
    gauges,
    mathematics,
    names,
    pointers,
    pronunciation,
    quantities,
    reviews,
    scales,
    text,
    values,
)
from bert_pipeline.wikipedia.templates.local import templates as _local_templates  # noqa: F401
