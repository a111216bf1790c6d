"""Template:Coord in running text: "{{coord|12|19|N|70|1|W}}" reads "12°19′N 70°1′W".

https://en.wikipedia.org/wiki/Template:Coord. In the title line, which is no prose, it shows nothing here.
"""

import re

from bert_pipeline.wikipedia.templates.registry import Arguments, register

_NUMBER = re.compile(r"[-−+]?\d{1,3}(?:\.\d+)?")
_SIGNS = ("°", "′", "″")


@register("coord, coor, coor d, coor dm, coor dms")
def _coordinates(arguments: Arguments) -> str | None:
    display = arguments.get("display").lower()
    if display and "inline" not in display and display not in ("i", "it", "ti", "i,t"):
        return None
    numbers: list[str] = []
    halves: list[str] = []
    # A letter ends one half: up to three numbers before it are degrees, minutes and seconds.
    for value in arguments.positional():
        if _NUMBER.fullmatch(value):
            numbers.append(value.replace("−", "-"))
        elif value.upper() in ("N", "S", "E", "W", "O") and 1 <= len(numbers) <= 3:
            halves.append("".join(map("".join, zip(numbers, _SIGNS))) + value.upper())
            numbers = []
        else:
            break

    # Two decimal numbers without letters: the signs name the halves.
    if not halves and len(numbers) == 2:
        for number, positive, negative in zip(numbers, "NE", "SW"):
            halves.append(f"{number.lstrip('-+')}°{negative if number.startswith('-') else positive}")
    return " ".join(halves) if len(halves) == 2 else None
