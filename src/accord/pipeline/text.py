"""Text for reports and what-ifs: aligned tables, counts, percentages and shortened lines."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from accord.kernel import canonical
from accord.kernel.clock import format_time

WIDEST: Final = 72
"""The width of a column; longer values are cut."""

MOST_LINES: Final = 20
"""The most rows of a table as text; programs get all."""

_LAST_SECOND: Final = 253_402_300_799


class SampleRecord(NamedTuple):
    """A record as an example; `at` in milliseconds, `payload` as JSON or None if it is too long."""

    at: int
    id: str
    payload: str | None = None

    @property
    def excerpt(self) -> str:
        """The payload on one line."""
        return "(too long to show)" if self.payload is None else shorten(self.payload, 2 * WIDEST)

    def to_dict(self) -> dict[str, Any]:
        """As JSON; the member `payload` is absent if there is none."""
        plain = {"at": format_moment(self.at), "id": self.id}
        if self.payload is None:
            return plain
        return {**plain, "payload": canonical.decode(self.payload)}

    def __str__(self) -> str:
        return f"{self.id}, {format_moment(self.at)}"


def format_moment(milliseconds: int) -> str:
    """Milliseconds since the epoch as RFC 3339."""
    return format_time(min(max(milliseconds // 1000, 0), _LAST_SECOND))


def count(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun: `1 call`, `1,200 calls`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def percentage(part: int, whole: int) -> str:
    """A percentage that is 0 % or 100 % only if it is exactly that."""
    if whole == 0:
        return "-"
    if part in (0, whole):
        return "0 %" if part == 0 else "100 %"
    return f"{min(max(100 * part / whole, 0.1), 99.9):.1f} %"


def shorten(text: str, width: int = WIDEST) -> str:
    """A text on one line, cut to a width."""
    line = "".join(" " if not letter.isprintable() else letter for letter in text)
    return line if len(line) <= width else line[: width - 1] + "…"


def format_table(
    columns: Sequence[str], rows: Sequence[Sequence[object]], most: int = MOST_LINES
) -> Iterator[str]:
    """A table as text, numbers right-aligned; rows beyond `most` are counted."""
    shown = [[_cell(value) for value in row] for row in rows[:most]]
    widths = [max(map(len, column)) for column in zip(columns, *shown, strict=True)]
    right = [
        bool(rows) and all(isinstance(row[place], int) for row in rows[:most])
        for place in range(len(columns))
    ]
    for line in (columns, ["-" * width for width in widths], *shown):
        yield "  " + _aligned(line, widths, right)
    if len(rows) > most:
        yield f"  … and {len(rows) - most:,} more (--json has them)"


def _cell(value: object) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return "-" if value is None else shorten(str(value))


def _aligned(cells: Iterable[str], widths: Sequence[int], right: Sequence[bool]) -> str:
    placed = [
        cell.rjust(width) if to_the_right else cell.ljust(width)
        for cell, width, to_the_right in zip(cells, widths, right, strict=True)
    ]
    return "  ".join(placed).rstrip()
