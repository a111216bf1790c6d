"""Template:Track gauge: the gauge of a railway, in millimetres and in feet and inches.

https://en.wikipedia.org/wiki/Template:Track_gauge
"""

import re

from bert_pipeline.wikipedia.templates.registry import Arguments, register

_GAUGES = {
    "1435mm": "1,435 mm (4 ft 8+1⁄2 in) standard gauge", "1000mm": "1,000 mm (3 ft 3+3⁄8 in) metre gauge",
    "1520mm": "1,520 mm (4 ft 11+27⁄32 in) Russian gauge", "1067mm": "1,067 mm (3 ft 6 in)",
    "1524mm": "1,524 mm (5 ft)", "1600mm": "1,600 mm (5 ft 3 in)", "1668mm": "1,668 mm (5 ft 5+21⁄32 in)",
    "1676mm": "1,676 mm (5 ft 6 in)", "950mm": "950 mm (3 ft 1+3⁄8 in)", "914mm": "914 mm (3 ft)",
    "762mm": "762 mm (2 ft 6 in)", "760mm": "760 mm (2 ft 5+15⁄16 in)", "750mm": "750 mm (2 ft 5+1⁄2 in)",
    "610mm": "610 mm (2 ft)", "600mm": "600 mm (1 ft 11+5⁄8 in)",
}  # fmt: skip
_NAMES = {"sg": "1435mm", "standard": "1435mm", "standardgauge": "1435mm", "metre": "1000mm", "metregauge": "1000mm",
          "1m": "1000mm"}  # fmt: skip


@register("railgauge, rail gauge, track gauge, rg, gauge")
def _track_gauge(arguments: Arguments) -> str | None:
    """Its common name ("standard gauge") shows where asked for: https://en.wikipedia.org/wiki/Template:Track_gauge"""
    code = re.sub(r"(?<=\d) (?=\d/)", "+", arguments.get(1).lower()).replace(" ", "")
    code = _NAMES.get(code, code)
    text = _GAUGES.get(code) or _GAUGES.get(f"{code}mm") or _imperial_gauge(code)
    if text is None:
        return arguments.get(1) or None
    if arguments.get("disp") == "1":
        return text.partition(" (")[0]
    measure, bracket, name = text.partition(")")
    return text if arguments.get("al", "allk").lower() in ("on", "yes", "y") else measure + bracket


_FEET_AND_INCHES = re.compile(r"(?:(\d+)ft)?(?:(\d+)(?:\.(\d+)|[+-]?(\d)/(\d))?in)?")


def _imperial_gauge(code: str) -> str | None:
    """ "4ft8.5in" -> "4 ft 8+1⁄2 in (1,435 mm)"."""
    match = _FEET_AND_INCHES.fullmatch(code)
    if match is None or not (match[1] or match[2]):
        return None
    fraction = {"5": "1⁄2", "25": "1⁄4", "75": "3⁄4"}.get(match[3] or "", f"{match[4]}⁄{match[5]}" if match[4] else "")
    part = float(f"0.{match[3]}") if match[3] else int(match[4]) / int(match[5]) if match[4] else 0.0
    feet, inches = divmod(int(match[1] or 0) * 12 + int(match[2] or 0), 12)
    inch = f"{inches}+{fraction}" if inches and fraction else fraction or (str(inches) if inches else "")
    shown = " ".join(filter(None, (f"{feet} ft" if feet else "", f"{inch} in" if inch else "")))
    return f"{shown} ({round((feet * 12 + inches + part) * 25.4):,} mm)"
