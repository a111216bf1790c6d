"""Templates whose value is not in the page, but in Wikidata or in tables that are kept up to date."""

import re

from bert_pipeline.wikipedia.placeholders import UNKNOWN_VALUE
from bert_pipeline.wikipedia.templates.figures import format_value
from bert_pipeline.wikipedia.templates.registry import PARSER_FUNCTIONS, Arguments, register_prefix, shows

shows(
    "wikidata, wdib, un population, world population, worldpopulation, us population, english district population,"
    " english district area, english district rank, english county population, austria population wikidata,"
    " austria metadata wikidata, spain metadata wikidata, france metadata wikidata, french metadata wikidata,"
    " italy metadata wikidata, germany metadata wikidata, switzerland metadata wikidata, swiss populations,"
    " turkey metadata wikidata, ph wikidata, fxconvert, currency convert, covid-19 data, number of languages,"
    " lsr, usdcy, rt data, rotten tomatoes data",
    UNKNOWN_VALUE,
)
for _prefix in (
    "metadata population",
    "metadata einwohnerzahl",
    "population germany",
    "population japan",
    "latest stable software release/",
    "latest preview software release/",
):
    register_prefix(_prefix)(lambda arguments: UNKNOWN_VALUE)
for _name in ("#property", "#statements", "#time", "#timel", "#timef"):
    PARSER_FUNCTIONS[_name] = lambda arguments: UNKNOWN_VALUE

# "12 * 2.5", "1 / 3 round 2"
_SUM = re.compile(r"\s*+(-?\d{1,12}(?:\.\d{1,6})?)\s*+([-+*/])\s*+(\d{1,12}(?:\.\d{1,6})?)\s*+(?:round\s*+(\d))?\s*+")


def _calculate(arguments: Arguments) -> str:
    """Calculate with two numbers; most calculations in articles begin with the current year, which is unknown."""
    match = _SUM.fullmatch(arguments.get(1))
    if match is None or match[2] == "/" and (not match[4] or float(match[3]) == 0):
        return UNKNOWN_VALUE
    left, right = float(match[1]), float(match[3])
    value = {"-": left - right, "+": left + right, "*": left * right}.get(match[2], left / right if right else 0.0)
    return format_value(value, int(match[4])) if match[4] else f"{value:.12g}".replace("-", "−")


PARSER_FUNCTIONS["#expr"] = _calculate
