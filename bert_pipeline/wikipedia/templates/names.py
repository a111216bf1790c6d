"""Templates that show names: of ships, countries, bodies in space, scripture, law, places."""

import re
import unicodedata

from bert_pipeline.wikipedia.templates.countries import COUNTRIES
from bert_pipeline.wikipedia.templates.registry import Arguments, register


@register("sortname, sort name")
def _sort_name(arguments: Arguments) -> str | None:
    return " ".join(filter(None, (arguments.get(1), arguments.get(2)))) or None


@register("sort")
def _sort(arguments: Arguments) -> str | None:
    return arguments.get(2) or arguments.get(1) or None


@register("flag, flagu, flaglist, flagteam, flag+link, esccnty")
def _flag(arguments: Arguments) -> str | None:
    return arguments.get("name", 1) or None


@register("flagcountry, flag country")
def _country(arguments: Arguments) -> str | None:
    """The full name, where {{flag}} shows what was written."""
    return arguments.get("name") or COUNTRIES.get(arguments.get(1)) or arguments.get(1) or None


_SHIP_PREFIXES = (
    "uss, hms, hmas, hmcs, hmnzs, ss, ms, mv, rms, usns, uscgc, uscs, usat, css, ins, hnoms, hdms, hswms, orp, jds,"
    " rfa, sms, tss, ps, mts, pns, rss, hmt, hmhs, hmy, hsv, frv, rv, sv, nrp, hnlms, bap, roks, tcg, htms, bns, lé,"
    " usrc, sas, smu, hmsas, ara, arm, brp, kri, kd, js, fgs, icgv"
)
_SHIP_NAMES = {"lé": "LÉ", "hnoms": "HNoMS", "hdms": "HDMS", "hswms": "HSwMS", "hnlms": "HNLMS"}


@register(_SHIP_PREFIXES)
def _ship(arguments: Arguments) -> str | None:
    name = arguments.get(1)
    shown = _SHIP_NAMES.get(arguments.name, arguments.name.upper())
    return _name_of_ship(shown, name, arguments.get(2), arguments.get(3)) if name else None


@register("ship")
def _any_ship(arguments: Arguments) -> str | None:
    return _name_of_ship(arguments.get(1), arguments.get(2), arguments.get(3), arguments.get(4)) or None


def _name_of_ship(prefix: str, name: str, number: str, display: str) -> str:
    """https://en.wikipedia.org/wiki/Template:Ship: display 1 is the number alone, 2 the name, 5 lacks the name, …"""
    if display == "1" and number:
        return number
    parts = {"2": [name], "3": [name], "5": [prefix]}.get(display, [prefix, name])
    shown = " ".join(part for part in parts if part)
    return f"{shown} ({number})" if number and display in ("", "3", "5") else shown


@register("sclass, sclass2, sclass-s, ship class, sclass2-, sclass-")
def _ship_class(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Sclass"""
    name, kind = arguments.get(1), arguments.get(2)
    if not name:
        return None
    without_kind = {"0": f"{name}-class", "4": f"{name} class", "5": name}
    return without_kind.get(arguments.get(3)) or f"{name}-class {kind}".strip()


@register("ov")
def _orbiter(arguments: Arguments) -> str | None:
    return {"099": "Challenger", "101": "Enterprise", "102": "Columbia", "103": "Discovery", "104": "Atlantis",
            "105": "Endeavour"}.get(arguments.get(1))  # fmt: skip


@register("mpl, mp, mpl-, minor planet")
def _minor_planet(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Minor_planet: a catalogue number, in brackets, may come first."""
    number, *parts = [*arguments.positional(), ""]
    if number.isdecimal() and parts[:1] != [""]:
        return f"({number}) {''.join(parts)}"
    return number + (" " if parts and parts[0][:1].isalpha() else "") + "".join(parts) or None


@register("dp, dwarf planet, planet")
def _planet(arguments: Arguments) -> str | None:
    return arguments.get(1) or None


@register("bibleverse, bibleref, bible verse, bibleref2, bibleref2c, bibleverse-nb, bibleref2-nb, bible")
def _bible(arguments: Arguments) -> str | None:
    values = [value for value in arguments.positional() if value]
    if arguments.name.startswith(("bibleverse", "bible verse")) and values and values[0].isdigit() and len(values) > 1:
        values = [f"{values[0]} {values[1]}", *values[2:]]
    return " ".join(values[:2]) or None


@register("cite quran, quran, qref, quran-usc, quran-usc-range")
def _quran(arguments: Arguments) -> str | None:
    if not arguments.get(2):
        return None
    last = f"–{arguments.get('e')}" if arguments.get("e") else ""
    return f"Quran {arguments.get(1)}:{arguments.get(2)}{last}"


@register("harvtxt, harvcoltxt, harvp, citet, harvard citation text")
def _cited_author(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Harvard_citation_text"""
    values = [value for value in arguments.positional() if value]
    if len(values) < 2:
        return None
    *names, year = values
    # Up to three names are listed; of more, only the first.
    people = (
        names[0]
        if len(names) == 1
        else f"{', '.join(names[:-1])} & {names[-1]}"
        if len(names) < 4
        else f"{names[0]} et al."
    )

    # The templates differ in where the page is: after a colon, inside the brackets, or after them.
    page, pages, place = arguments.get("p", "page"), arguments.get("pp", "pages"), arguments.get("loc", "at")
    if arguments.name == "harvcoltxt" and (page or pages):
        return f"{people} ({year}:{page or pages})"
    where = f", p. {page}" if page else f", pp. {pages}" if pages else ""
    where += f", {place}" if place else ""
    return f"{people} ({year}){where}" if arguments.name == "harvp" else f"{people} ({year}{where})"


@register("us patent, uspat, us patent application")
def _patent(arguments: Arguments) -> str | None:
    """A second argument is shown in place of the number."""
    number, label = arguments.get(1), arguments.get(2)
    if label and arguments.name != "us patent application":
        return label
    return f"U.S. Patent {int(number):,}" if number.isdecimal() else None


@register("url")
def _url(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:URL: the address without scheme, and without a path that is only "/"."""
    host, _, path = arguments.get(1).rpartition("://")[2].partition("/")
    path = f"/{path}" if path and path[0] not in "?#" else path
    return arguments.get(2) or host + path or None


@register("24hlm")
def _le_mans(arguments: Arguments) -> str | None:
    """The year alone: of the race, the sentence speaks already."""
    return arguments.get(1) or None


@register("aside")
def _aside(arguments: Arguments) -> str | None:
    return f" – {arguments.get(1)} – " if arguments.get(1) else None


@register("nbay, abay, nhly")
def _season(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Nbay: a season by the year in which it began, or one of its two years."""
    year = arguments.get(1)[:4]
    if not year.isdecimal() or len(year) < 4:
        return arguments.get(1) or None
    following, which = str(int(year) + 1), arguments.get(2).lower()
    if which in ("start", "end"):
        return year if which == "start" else following
    shown = f"{year}–{following if following.endswith('00') else following[2:]}"
    league = {"nbay": "NBA", "abay": "ABA", "nhly": "NHL"}[arguments.name]
    return f"{shown} {league} season" if arguments.get("full") else shown


@register("escyr")
def _year_of_contest(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Escyr: the third argument replaces the year."""
    return arguments.get(3, 1) or None


@register("nfly, mlby, baseball year, mlb year, by, wsy, alcs, nlcs, f1, cfby, wcy, ncaay, mlsy, wnbay, cfly, scf")
def _year(arguments: Arguments) -> str | None:
    return arguments.get(1) or None


@register("post-nominals, postnominals, post nominals, postnominal, post-nominal, postnom")
def _post_nominals(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Post-nominals"""
    separator = ", " if arguments.get("commas", "sep").lower() in ("on", "true", "yes", ",", "y") else " "
    letters = separator.join(value for value in arguments.positional() if value)
    return letters or arguments.get("list", "unlinked", "post-noms") or None


@register("née, nee, né, ne")
def _born_as(arguments: Arguments) -> str:
    word = "né" if arguments.name in ("ne", "né") else "née"
    return f"{word} {arguments.get(1)}".strip()


@register("airport codes, airport code")
def _airport_codes(arguments: Arguments) -> str | None:
    kinds = zip(("IATA", "ICAO", "FAA LID"), arguments.positional())
    shown = ", ".join(f"{kind}: {code}" for kind, code in kinds if code)
    return shown if arguments.get("p").lower() in ("n", "no") else f"({shown})" if shown else None


@register("ussc")
def _case_of_the_supreme_court(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Ussc"""
    volume, page, year = arguments.get("volume", 1), arguments.get("page", 2), arguments.get("year", "date", 3)
    if not page:
        return arguments.get("name") or None
    shown = f"{volume} U.S. {page}{f' ({year})' if year else ''}"
    return ", ".join(filter(None, (arguments.get("name"), shown)))


@register("usc, unitedstatescode, united states code, uscsub, unitedstatescodesub")
def _section_of_law(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:United_States_Code: a section or several, or parts of a section."""
    title, section, *parts = [*arguments.positional(), "", ""]
    if arguments.get("pipe") or not section:
        return arguments.get("pipe") or None
    parts = [part for part in parts if part]
    if arguments.name.endswith("sub"):
        shown = f"§ {section}{''.join(f'({part})' for part in parts)}"
    else:
        shown = f"§§ {section}–{parts[0]}" if parts else f"§ {section}"
    return shown if arguments.get("notitle") else f"{title} U.S.C. {shown}"


@register("unichar")
def _character(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Unichar"""
    code = arguments.get(1).upper().removeprefix("U+")
    if not re.fullmatch("[0-9A-F]{2,6}", code) or int(code, 16) > 0x10FFFF or 0xD800 <= int(code, 16) < 0xF900:
        return None
    char = chr(int(code, 16))
    name = arguments.get(2) or unicodedata.name(char, "")
    note = f"({arguments.get('note')})" if arguments.get("note") else ""
    return " ".join(filter(None, (f"U+{code.zfill(4)}", char if char.isprintable() else "", name, note)))


_NAMES_A_PLACE = re.compile(r"\b(?:at|near|as|from|to|and|between|around|is|are|was|were|of|by|about|coordinates)$")


@register("stnlnk, stn, rws, station, tubestation, lus, subway, tram, tstop, metro, metrod")
def _railway_station(arguments: Arguments) -> str | None:
    return arguments.get("t", 1) or None


@register("station link, stl")
def _station_of_a_system(arguments: Arguments) -> str | None:
    return arguments.get(2) or None


@register("cfb link, cbb link, cfb, cbb")
def _team_of_a_year(arguments: Arguments) -> str | None:
    return arguments.get("title") or f"{arguments.get('year')} {arguments.get('team')}".strip() or None


@register("p., pp., vol.")
def _part_of_book(arguments: Arguments) -> str | None:
    places = "–".join(value for value in arguments.positional()[:2] if value)
    return f"{arguments.name} {places}" if places else None


@register("no., number sign, numero")
def _number(arguments: Arguments) -> str:
    return f"No. {arguments.get(1)}".strip()
