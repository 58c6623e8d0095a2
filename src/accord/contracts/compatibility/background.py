"""Rules about what a service keeps and does unasked: state, jobs, consumers, resources, uses.

Growth is an update. What can lose, reject, skip or double work is a migration (specification,
sections 8a, 10 and 10a).
"""

from collections.abc import Iterator
from typing import Any

from accord.contracts.compatibility.comparison import Comparison
from accord.contracts.compatibility.rule import Found, Handler
from accord.contracts.compatibility.settings import Path
from accord.contracts.compatibility.side import Side, state_version


def gone(word: str, *sections: Path) -> Handler:
    """What one contract has in these sections and the next one does not."""

    def handler(comparison: Comparison) -> Iterator[Found]:
        for section in sections:
            new = comparison.new.section(*section)
            for name in comparison.old.section(*section):
                if name not in new:
                    yield Found((*section, name), f"the {word} {name} is gone")

    return handler


def come(word: str, *sections: Path) -> Handler:
    """What a contract has in these sections and the one before did not."""

    def handler(comparison: Comparison) -> Iterator[Found]:
        for section in sections:
            old = comparison.old.section(*section)
            for name in comparison.new.section(*section):
                if name not in old:
                    yield Found((*section, name), f"the {word} {name} is new")

    return handler


def settings(section: str, *, risky: bool) -> Handler:
    """Settings that changed in a way that may do harm, or in one that does not."""

    def handler(comparison: Comparison) -> Iterator[Found]:
        for path, old in comparison.old.settings.items():
            new = comparison.new.settings.get(path)
            if (
                path[0] == section
                and new is not None
                and new.value != old.value
                and old.setting.risky(old.value, new.value) is risky
            ):
                message = f"`{path[-1]}` goes from {old.spelled()} to {new.spelled()}"
                yield Found(path, message)

    return handler


def keyed(comparison: Comparison) -> Iterator[Found]:
    """Whether a queue runs jobs by key decides which jobs run, and which run at once."""
    for name, old, new in comparison.kept("jobs"):
        if ("keyConcurrency" in old) != ("keyConcurrency" in new):
            verb = "runs" if "keyConcurrency" in new else "no longer runs"
            yield Found(("jobs", name, "keyConcurrency"), f"the queue {verb} jobs by key")


def state_kind(comparison: Comparison) -> Iterator[Found]:
    """A state store stays a value, or a map."""
    for name, old, new in comparison.kept("state"):
        if old["kind"] != new["kind"]:
            message = f"the store goes from {old['kind']} to {new['kind']}"
            yield Found(("state", name, "kind"), message)


def state_version_dropped(comparison: Comparison) -> Iterator[Found]:
    """Every version of state that was readable stays readable."""
    for name, _, _ in comparison.kept("state"):
        for version, (path, _) in comparison.old.state[name].items():
            if version not in comparison.new.state[name]:
                yield Found(path, f"records of the version {version} are no longer accepted")


def state_version_ahead(comparison: Comparison) -> Iterator[Found]:
    """Contracts that run at once read the state that each of them writes."""
    if comparison.coexists:
        for name, _, new in comparison.kept("state"):
            version = state_version(new)
            if version not in comparison.old.state[name]:
                message = f"the old contract does not read records of the version {version}"
                yield Found(("state", name), message)


def state_version_new(comparison: Comparison) -> Iterator[Found]:
    """A state store may accept and write more versions than before."""
    for name, old, new in comparison.kept("state"):
        for version, (path, _) in comparison.new.state[name].items():
            if version not in comparison.old.state[name]:
                yield Found(path, f"records of the version {version} are accepted now")
        if state_version(old) != state_version(new):
            message = f"records are written as {state_version(new)} now"
            yield Found(("state", name, "stateVersion"), message)


def consumer_narrowed(comparison: Comparison) -> Iterator[Found]:
    """A consumer group goes on with the events that it took."""
    for path, old, new in _selections(comparison):
        for contract, event in sorted(old - new):
            yield Found(path, f"the group no longer takes {event}{_origin(contract)}")


def consumer_widened(comparison: Comparison) -> Iterator[Found]:
    """A consumer group may take more events than before."""
    for path, old, new in _selections(comparison):
        for contract, event in sorted(new - old):
            yield Found(path, f"the group takes {event}{_origin(contract)} now")


def uses_added(comparison: Comparison) -> Iterator[Found]:
    """A contract may use more of others than before, once authority has accepted it."""
    old, new = _needs(comparison.old), _needs(comparison.new)
    for need in sorted(new.keys() - old.keys()):
        yield Found(new[need], f"uses {_spelled(need)}")


def uses_removed(comparison: Comparison) -> Iterator[Found]:
    """A contract may use less of others than before."""
    old, new = _needs(comparison.old), _needs(comparison.new)
    for need in sorted(old.keys() - new.keys()):
        yield Found(old[need], f"no longer uses {_spelled(need)}")


Event = tuple[str, str]


def _selections(comparison: Comparison) -> Iterator[tuple[Path, set[Event], set[Event]]]:
    for name, old, new in comparison.kept("eventConsumers"):
        before, after = _events(old, comparison.old), _events(new, comparison.new)
        if before != after:
            yield ("eventConsumers", name), before, after


def _events(group: dict[str, Any], side: Side) -> set[Event]:
    """The events of a group; an alias stands for the contract that it names."""
    aliases = {**side.section("uses", "optional"), **side.section("uses", "required")}
    events = {("", event) for event in group.get("self", ())}
    for alias, names in group.get("uses", {}).items():
        events |= {(aliases[alias]["contract"], name) for name in names}
    return events


def _origin(contract: str) -> str:
    return f" of {contract}" if contract else ""


Need = tuple[str, ...]


def _needs(side: Side) -> dict[Need, Path]:
    """What a contract uses, apart from the aliases that it has for it, and where it says so."""
    needs: dict[Need, Path] = {}
    for group, aliases in side.section("uses").items():
        for alias, use in aliases.items():
            path = ("uses", group, alias)
            needs[group, use["contract"]] = path
            for section, lists in use.items():
                if section != "contract":
                    for action, names in lists.items():
                        for name in names:
                            needs[group, use["contract"], section, action, name] = path
    return needs


def _spelled(need: Need) -> str:
    group, contract, *surface = need
    return f"{' '.join((*surface[2:], *surface[:2]))} of {contract} ({group})".strip()
