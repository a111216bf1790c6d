"""Templates that name sections, standards, vulnerabilities and roads within a sentence."""

from bert_pipeline.wikipedia.templates.registry import Arguments, register


@register("section link, sectionlink, slink")
def _section(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Section_link: "Page § Section"; without a page, one of this article."""
    page, *sections = [*arguments.positional(), ""]
    if not any(sections):
        page, _, section = page.partition("#")
        sections = [section]
    sections = [section.replace("_", " ") for section in sections if section]
    if not sections:
        return page or None
    names = " and ".join(filter(None, (", ".join(sections[:-1]), sections[-1])))
    return f"{page} {'§§' if len(sections) > 1 else '§'} {names}".strip()


@register("crossreference, cross-reference, crossref, xref, xreference")
def _cross_reference(arguments: Arguments) -> str | None:
    """One that is a line of its own is dropped with the other pointers."""
    return arguments.get(1) or None


@register("ietf rfc, rfc")
def _request_for_comments(arguments: Arguments) -> str | None:
    """Numbers alone: {{rfc|bio}} asks for comments on a page, while French articles name {{RFC|793|titre=…}}."""
    return ", ".join(f"RFC {number}" for number in arguments.positional() if number.isdecimal()) or None


@register("cve")
def _vulnerability(arguments: Arguments) -> str | None:
    return f"CVE-{arguments.get(1).removeprefix('CVE-')}" if arguments.get(1) else None


@register("usbill")
def _bill(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:USBill: {{USBill|117|S.|1605}}"""
    return " ".join(filter(None, (arguments.get(2), arguments.get(3)))) or None


@register("uspl")
def _public_law(arguments: Arguments) -> str | None:
    return f"Pub. L. {arguments.get(1)}–{arguments.get(2)}" if arguments.get(2) else None


@register("sourcetext")
def _verse_of_source(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Sourcetext"""
    place = ":".join(filter(None, (arguments.get("chapter"), arguments.get("verse"))))
    return " ".join(filter(None, (arguments.get("book"), place))) or None


@register("man")
def _manual_page(arguments: Arguments) -> str | None:
    return f"{arguments.get(2)}({arguments.get(1)})" if arguments.get(2) else None


@register("gcl")
def _gloss_of_grammar(arguments: Arguments) -> str | None:
    return arguments.get(1) or None


@register("jct, road junction")
def _roads(arguments: Arguments) -> str | None:
    """https://en.wikipedia.org/wiki/Template:Jct: pairs of a kind of road and its number."""
    values = arguments.positional()
    shown = ""
    for place, (kind, number) in enumerate(zip(values[::2], values[1::2]), start=1):
        # "US-Bus" adds "Bus." after the number; I, M and K are joined to theirs with a hyphen.
        kind, _, suffix = kind.partition("-")
        road = kind + ("-" if kind in ("I", "M", "K") else " ") + number
        parts = (road, suffix and f"{suffix}.", arguments.get(f"dir{place}"))
        road = " ".join(filter(None, parts))
        joint = "" if not shown else " to " if arguments.get(f"to{place}") else " / "
        shown += joint + road
    if shown and arguments.get("to1"):
        shown = f"To {shown}"
    town = arguments.get("city1", "location1", "town1")
    return f"{shown} – {town}" if shown and town else shown or None
