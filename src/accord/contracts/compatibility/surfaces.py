"""Rules about what others meet: lineage, surfaces, subjects, capabilities, errors, transfers."""

from collections.abc import Iterator
from typing import Any, Final

from accord.contracts.compatibility.comparison import Comparison
from accord.contracts.compatibility.rule import Found
from accord.contracts.compatibility.settings import Path, Value
from accord.contracts.compatibility.side import Gate, Side
from accord.contracts.surface import SECTIONS

_WORDS: Final = {
    "rpc": "RPC",
    "operations": "operation",
    "events": "event",
    "feeds": "feed",
    "jobs": "job queue",
}
_LIMITS: Final = ("maxBytes", "expiresInMs")


def lineage(comparison: Comparison) -> Iterator[Found]:
    """A contract keeps its id; another id is another lineage."""
    old, new = comparison.old.contract["id"], comparison.new.contract["id"]
    if old != new:
        yield Found(("id",), f"{new} is another lineage than {old}")


def kind(comparison: Comparison) -> Iterator[Found]:
    """A contract keeps its kind."""
    old, new = comparison.old.contract["kind"], comparison.new.contract["kind"]
    if old != new:
        yield Found(("kind",), f"the kind goes from {old} to {new}")


def removed(comparison: Comparison) -> Iterator[Found]:
    """What others use is not removed or renamed."""
    for path in _missing(comparison.old, comparison.new):
        yield Found(path, f"the {_name(path)} is gone")


def added(comparison: Comparison) -> Iterator[Found]:
    """A contract may own more than before."""
    for path in _missing(comparison.new, comparison.old):
        yield Found(path, f"the {_name(path)} is new")


def moved(comparison: Comparison) -> Iterator[Found]:
    """A surface stays on its subject."""
    for section in SECTIONS:
        for name, old, new in comparison.kept(section):
            if old["subject"] != new["subject"]:
                message = f"the subject goes from {old['subject']} to {new['subject']}"
                yield Found((section, name, "subject"), message)


def version(comparison: Comparison) -> Iterator[Found]:
    """A surface that is named by another version should be another surface."""
    for section in SECTIONS:
        for name, old, new in comparison.kept(section):
            if old["version"] != new["version"]:
                message = f"the version goes from {old['version']} to {new['version']}"
                yield Found((section, name, "version"), message)


def transfer(comparison: Comparison) -> Iterator[Found]:
    """A surface goes on transferring in the way that its callers know."""
    for section in ("rpc", "operations"):
        for name, old, new in comparison.kept(section):
            if _way(old) != _way(new):
                yield Found((section, name, "transfer"), "the transfer works in another way")


def transfer_tightened(comparison: Comparison) -> Iterator[Found]:
    """A transfer takes what it took before."""
    for path, old, new in _limits(comparison):
        if comparison.coexists or old.setting.risky(old.value, new.value):
            yield Found(path, f"the limit goes from {old.spelled()} to {new.spelled()}")


def transfer_loosened(comparison: Comparison) -> Iterator[Found]:
    """A transfer may take more than before."""
    for path, old, new in _limits(comparison):
        if not comparison.coexists and not old.setting.risky(old.value, new.value):
            yield Found(path, f"the limit goes from {old.spelled()} to {new.spelled()}")


def capability_added(comparison: Comparison) -> Iterator[Found]:
    """Nobody needs a capability for what they could do without it."""
    for path, old, new in _gates(comparison):
        if new is None:
            yield Found(path, "nobody may do this any more")
        elif old is not None and (more := new - old):
            yield Found(path, f"needs {_listed(more)} now")


def capability_removed(comparison: Comparison) -> Iterator[Found]:
    """Nobody gets by a new contract what they had no capability for."""
    if not comparison.coexists:
        yield from _opened(comparison)


def capability_differs(comparison: Comparison) -> Iterator[Found]:
    """Contracts that answer at once ask for the same capabilities."""
    if comparison.coexists:
        yield from _opened(comparison)


def capability_described(comparison: Comparison) -> Iterator[Found]:
    """What a capability is said to mean is what people approve."""
    old, new = comparison.old.section("capabilities"), comparison.new.section("capabilities")
    for key in {**old, **new}:
        if key not in new:
            yield Found(("capabilities", key), "the capability is no longer described")
        elif old.get(key) != new[key]:
            word = "described otherwise" if key in old else "new"
            yield Found(("capabilities", key), f"the capability is {word}")


def error_added(comparison: Comparison) -> Iterator[Found]:
    """A surface may declare more errors; readers keep errors that they do not know."""
    for path, old, new in _errors(comparison):
        for error in sorted(new - old):
            yield Found(path, f"the error {error} is declared now")


def error_removed(comparison: Comparison) -> Iterator[Found]:
    """A surface may declare fewer errors; callers that look for one look in vain."""
    for path, old, new in _errors(comparison):
        for error in sorted(old - new):
            yield Found(path, f"the error {error} is no longer declared")


def _missing(here: Side, there: Side) -> Iterator[Path]:
    """What one side owns and the other does not, without the parts of what is missing whole."""
    for path in here.owned:
        if path not in there.owned and (len(path) == 2 or path[:2] in there.owned):
            yield path


def _name(path: Path) -> str:
    surface = f"{_WORDS[path[0]]} {path[1]}"
    if len(path) == 2:
        return surface
    part = f"signal {path[3]}" if path[2] == "signals" else path[2].replace("cancel", "cancelling")
    return f"{part} of the {surface}"


def _way(surface: dict[str, Any]) -> dict[str, Any]:
    way = surface.get("transfer", {})
    return {name: part for name, part in way.items() if name not in _LIMITS}


def _limits(comparison: Comparison) -> Iterator[tuple[Path, Value, Value]]:
    for path, old in comparison.old.settings.items():
        new = comparison.new.settings.get(path)
        if path[0] == "operations" and new is not None and new != old:
            yield path, old, new


def _gates(comparison: Comparison) -> Iterator[tuple[Path, Gate, Gate]]:
    for path, old in comparison.old.gates.items():
        new = comparison.new.gates.get(path, old)
        if new != old:
            yield path, old, new


def _opened(comparison: Comparison) -> Iterator[Found]:
    for path, old, new in _gates(comparison):
        if new is not None and old is None:
            yield Found(path, f"was nobody's, and is open with {_listed(new)}")
        elif new is not None and old is not None and (fewer := old - new):
            yield Found(path, f"no longer needs {_listed(fewer)}")


def _listed(capabilities: frozenset[str]) -> str:
    return ", ".join(sorted(capabilities)) or "no capability"


def _errors(comparison: Comparison) -> Iterator[tuple[Path, set[str], set[str]]]:
    for section in ("rpc", "operations"):
        for name, old, new in comparison.kept(section):
            if old.get("errors") != new.get("errors"):
                before, after = (
                    {error["type"] for error in surface.get("errors", ())} for surface in (old, new)
                )
                yield (section, name, "errors"), before, after
