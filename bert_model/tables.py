"""Tables as text."""

from collections.abc import Container, Iterable

from tabulate import tabulate


def format_table(head: Iterable[str], rows: Iterable[Iterable[str]], style: str, numbers: Container[int] = ()) -> str:
    """Format rows in a style of tabulate, "pipe" for Markdown; columns with an index in `numbers` end at the right."""
    lines = [[cell.replace("|", "\\|") if style == "pipe" else cell for cell in row] for row in (head, *rows)]
    align = ["right" if column in numbers else "left" for column in range(len(lines[0]))]
    return str(tabulate(lines[1:], lines[0], style, disable_numparse=True, colalign=align))
