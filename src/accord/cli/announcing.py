"""The first words of a station, a connector or an authority: what is up, and what is not.

Owns the wording. It starts nothing, and a plane that is down is told with the reason that the
supervisor has for it, which ends with its remedy.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from accord.cli.contract_reading import printable

if TYPE_CHECKING:
    from accord.station.plane import PlaneReport


def announcement(
    subject: str,
    where: str,
    reports: "Sequence[PlaneReport]",
    *,
    facts: Sequence[tuple[str, str]] = (),
    home: str = "",
) -> str:
    """What a person reads once a station has started.

    Args:
        subject: Who speaks, such as "The connector".
        where: Where it is, such as " at http://127.0.0.1:7070"; may be empty.
        reports: How its planes are.
        facts: What else is to be known, each with its name.
        home: The option that a command needs to mean its home.
    """
    from accord.station.plane import PlaneState

    failed = down(reports)
    extent = ", but not all of it" if failed else ""
    width = max((len(name) for name, _ in facts), default=0)
    lines = [f"{subject} is up{where}{extent}."]
    lines += [f"  {name:{width}}  {value}" for name, value in facts]
    if failed:
        lines += ["Not up:", *(f"  {each.name}: {printable(each.reason)}" for each in failed)]
        lines.append(f"What is down is tried again; `accord status{home}` says how it is.")
    if late := [each.name for each in reports if each.state is PlaneState.STARTING]:
        lines.append(f"Still starting: {', '.join(late)}.")
    return "\n".join(lines)


def down(reports: "Sequence[PlaneReport]") -> "list[PlaneReport]":
    """The planes that have failed; one that has not come up yet has not."""
    from accord.station.plane import PlaneState

    return [each for each in reports if each.state in (PlaneState.BACKING_OFF, PlaneState.FAILED)]


def as_data(reports: "Sequence[PlaneReport]") -> list[dict[str, str]]:
    """The planes that are down, for a program."""
    return [
        {"name": each.name, "state": each.state.value, "reason": each.reason}
        for each in down(reports)
    ]
