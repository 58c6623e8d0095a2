"""The rules of comparison: one function for each kind of change, and the table RULES.

They cover what a service stores and does by itself (state, jobs, consumers, resources, uses), what
others see (lineage, surfaces, capabilities, errors, transfers), and payloads. Growth is an update;
what can lose, reject, skip or repeat work is a migration (sections 8a, 10 and 10a).
"""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from accord.contracts.compatibility.comparison import (
    MAX_CHANGED,
    Category,
    ChangedPayload,
    Comparison,
    CompatibilityRule,
    Level,
    Occurrence,
    RuleHandler,
)
from accord.contracts.compatibility.differences import Difference, DifferenceKind
from accord.contracts.compatibility.proofs import refusal_of, witness_of
from accord.contracts.compatibility.side import Gate, Path, SettingValue, Side, state_version
from accord.contracts.containment import ABSENT, ContainmentVerdict
from accord.contracts.surfaces import SECTIONS
from accord.kernel import canonical


def entry_removed(word: str, *sections: Path) -> RuleHandler:
    """A rule for entries of these sections that the new contract no longer has."""

    def handler(comparison: Comparison) -> Iterator[Occurrence]:
        for section in sections:
            new = comparison.new.section(*section)
            for name in comparison.old.section(*section):
                if name not in new:
                    yield Occurrence((*section, name), f"the {word} {name} is gone")

    return handler


def entry_added(word: str, *sections: Path) -> RuleHandler:
    """A rule for entries of these sections that are new."""

    def handler(comparison: Comparison) -> Iterator[Occurrence]:
        for section in sections:
            old = comparison.old.section(*section)
            for name in comparison.new.section(*section):
                if name not in old:
                    yield Occurrence((*section, name), f"the {word} {name} is new")

    return handler


def setting_changed(section: str, *, risky: bool) -> RuleHandler:
    """A rule for settings that changed in a risky way, or in a safe one."""

    def handler(comparison: Comparison) -> Iterator[Occurrence]:
        for path, old in comparison.old.settings.items():
            new = comparison.new.settings.get(path)
            if (
                path[0] == section
                and new is not None
                and new.value != old.value
                and old.setting.risky(old.value, new.value) is risky
            ):
                message = f"`{path[-1]}` goes from {old.spelled()} to {new.spelled()}"
                yield Occurrence(path, message)

    return handler


def keying_changed(comparison: Comparison) -> Iterator[Occurrence]:
    """Whether a queue runs jobs by key decides which jobs run, and which run at once."""
    for name, old, new in comparison.common("jobs"):
        if ("keyConcurrency" in old) != ("keyConcurrency" in new):
            verb = "runs" if "keyConcurrency" in new else "no longer runs"
            yield Occurrence(("jobs", name, "keyConcurrency"), f"the queue {verb} jobs by key")


def state_kind(comparison: Comparison) -> Iterator[Occurrence]:
    """A state store stays a value, or a map."""
    for name, old, new in comparison.common("state"):
        if old["kind"] != new["kind"]:
            message = f"the store goes from {old['kind']} to {new['kind']}"
            yield Occurrence(("state", name, "kind"), message)


def state_version_dropped(comparison: Comparison) -> Iterator[Occurrence]:
    """Every version of state that was readable stays readable."""
    for name, _, _ in comparison.common("state"):
        for version, (path, _) in comparison.old.state[name].items():
            if version not in comparison.new.state[name]:
                yield Occurrence(path, f"records of the version {version} are no longer accepted")


def state_version_ahead(comparison: Comparison) -> Iterator[Occurrence]:
    """Contracts that run at once read the state that each of them writes."""
    if comparison.coexists:
        for name, _, new in comparison.common("state"):
            version = state_version(new)
            if version not in comparison.old.state[name]:
                message = f"the old contract does not read records of the version {version}"
                yield Occurrence(("state", name), message)


def state_version_new(comparison: Comparison) -> Iterator[Occurrence]:
    """A state store may accept and write more versions than before."""
    for name, old, new in comparison.common("state"):
        for version, (path, _) in comparison.new.state[name].items():
            if version not in comparison.old.state[name]:
                yield Occurrence(path, f"records of the version {version} are accepted now")
        if state_version(old) != state_version(new):
            message = f"records are written as {state_version(new)} now"
            yield Occurrence(("state", name, "stateVersion"), message)


def consumer_narrowed(comparison: Comparison) -> Iterator[Occurrence]:
    """A consumer group goes on with the events that it took."""
    for path, old, new in _selections(comparison):
        for contract, event in sorted(old - new):
            yield Occurrence(path, f"the group no longer takes {event}{_origin(contract)}")


def consumer_widened(comparison: Comparison) -> Iterator[Occurrence]:
    """A consumer group may take more events than before."""
    for path, old, new in _selections(comparison):
        for contract, event in sorted(new - old):
            yield Occurrence(path, f"the group takes {event}{_origin(contract)} now")


def uses_added(comparison: Comparison) -> Iterator[Occurrence]:
    """A contract may use more of others than before, once authority has accepted it."""
    old, new = _needs(comparison.old), _needs(comparison.new)
    for need in sorted(new.keys() - old.keys()):
        yield Occurrence(new[need], f"uses {_spelled(need)}")


def uses_removed(comparison: Comparison) -> Iterator[Occurrence]:
    """A contract may use less of others than before."""
    old, new = _needs(comparison.old), _needs(comparison.new)
    for need in sorted(old.keys() - new.keys()):
        yield Occurrence(old[need], f"no longer uses {_spelled(need)}")


EventKey = tuple[str, str]


def _selections(comparison: Comparison) -> Iterator[tuple[Path, set[EventKey], set[EventKey]]]:
    for name, old, new in comparison.common("eventConsumers"):
        before, after = _events(old, comparison.old), _events(new, comparison.new)
        if before != after:
            yield ("eventConsumers", name), before, after


def _events(group: dict[str, Any], side: Side) -> set[EventKey]:
    """The events of a consumer group, with aliases replaced by contract ids."""
    aliases = {**side.section("uses", "optional"), **side.section("uses", "required")}
    events = {("", event) for event in group.get("self", ())}
    for alias, names in group.get("uses", {}).items():
        events |= {(aliases[alias]["contract"], name) for name in names}
    return events


def _origin(contract: str) -> str:
    return f" of {contract}" if contract else ""


UsedSurface = tuple[str, ...]


def _needs(side: Side) -> dict[UsedSurface, Path]:
    """The surfaces that a contract uses, independent of aliases, and where it declares them."""
    needs: dict[UsedSurface, Path] = {}
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


def _spelled(need: UsedSurface) -> str:
    group, contract, *surface = need
    return f"{' '.join((*surface[2:], *surface[:2]))} of {contract} ({group})".strip()


_WORDS: Final = {
    "rpc": "RPC",
    "operations": "operation",
    "events": "event",
    "feeds": "feed",
    "jobs": "job queue",
}
_LIMITS: Final = ("maxBytes", "expiresInMs")


def lineage(comparison: Comparison) -> Iterator[Occurrence]:
    """A contract keeps its id; another id is another lineage."""
    old, new = comparison.old.contract["id"], comparison.new.contract["id"]
    if old != new:
        yield Occurrence(("id",), f"{new} is another lineage than {old}")


def contract_kind(comparison: Comparison) -> Iterator[Occurrence]:
    """A contract keeps its kind."""
    old, new = comparison.old.contract["kind"], comparison.new.contract["kind"]
    if old != new:
        yield Occurrence(("kind",), f"the kind goes from {old} to {new}")


def surface_removed(comparison: Comparison) -> Iterator[Occurrence]:
    """What others use is not removed or renamed."""
    for path in _missing(comparison.old, comparison.new):
        yield Occurrence(path, f"the {_surface_name(path)} is gone")


def surface_added(comparison: Comparison) -> Iterator[Occurrence]:
    """A contract may own more than before."""
    for path in _missing(comparison.new, comparison.old):
        yield Occurrence(path, f"the {_surface_name(path)} is new")


def subject_moved(comparison: Comparison) -> Iterator[Occurrence]:
    """A surface stays on its subject."""
    for section in SECTIONS:
        for name, old, new in comparison.common(section):
            if old["subject"] != new["subject"]:
                message = f"the subject goes from {old['subject']} to {new['subject']}"
                yield Occurrence((section, name, "subject"), message)


def version_changed(comparison: Comparison) -> Iterator[Occurrence]:
    """A surface that is named by another version should be another surface."""
    for section in SECTIONS:
        for name, old, new in comparison.common(section):
            if old["version"] != new["version"]:
                message = f"the version goes from {old['version']} to {new['version']}"
                yield Occurrence((section, name, "version"), message)


def transfer_changed(comparison: Comparison) -> Iterator[Occurrence]:
    """A surface goes on transferring in the way that its callers know."""
    for section in ("rpc", "operations"):
        for name, old, new in comparison.common(section):
            if _way(old) != _way(new):
                yield Occurrence((section, name, "transfer"), "the transfer works in another way")


def transfer_tightened(comparison: Comparison) -> Iterator[Occurrence]:
    """A transfer takes what it took before."""
    for path, old, new in _limits(comparison):
        if comparison.coexists or old.setting.risky(old.value, new.value):
            yield Occurrence(path, f"the limit goes from {old.spelled()} to {new.spelled()}")


def transfer_loosened(comparison: Comparison) -> Iterator[Occurrence]:
    """A transfer may take more than before."""
    for path, old, new in _limits(comparison):
        if not comparison.coexists and not old.setting.risky(old.value, new.value):
            yield Occurrence(path, f"the limit goes from {old.spelled()} to {new.spelled()}")


def capability_added(comparison: Comparison) -> Iterator[Occurrence]:
    """Nobody needs a capability for what they could do without it."""
    for path, old, new in _common_gates(comparison):
        if new is None:
            yield Occurrence(path, "nobody may do this any more")
        elif old is not None and (more := new - old):
            yield Occurrence(path, f"needs {_listed_capabilities(more)} now")


def capability_removed(comparison: Comparison) -> Iterator[Occurrence]:
    """Nobody gets by a new contract what they had no capability for."""
    if not comparison.coexists:
        yield from _opened(comparison)


def capability_differs(comparison: Comparison) -> Iterator[Occurrence]:
    """Contracts that answer at once ask for the same capabilities."""
    if comparison.coexists:
        yield from _opened(comparison)


def capability_described(comparison: Comparison) -> Iterator[Occurrence]:
    """What a capability is said to mean is what people approve."""
    old, new = comparison.old.section("capabilities"), comparison.new.section("capabilities")
    for key in {**old, **new}:
        if key not in new:
            yield Occurrence(("capabilities", key), "the capability is no longer described")
        elif old.get(key) != new[key]:
            word = "described otherwise" if key in old else "new"
            yield Occurrence(("capabilities", key), f"the capability is {word}")


def error_added(comparison: Comparison) -> Iterator[Occurrence]:
    """A surface may declare more errors; readers keep errors that they do not know."""
    for path, old, new in _errors(comparison):
        for error in sorted(new - old):
            yield Occurrence(path, f"the error {error} is declared now")


def error_removed(comparison: Comparison) -> Iterator[Occurrence]:
    """A surface may declare fewer errors; callers that look for one look in vain."""
    for path, old, new in _errors(comparison):
        for error in sorted(old - new):
            yield Occurrence(path, f"the error {error} is no longer declared")


def _missing(here: Side, there: Side) -> Iterator[Path]:
    """What only one side owns, without the parts of what is missing as a whole."""
    for path in here.owned:
        if path not in there.owned and (len(path) == 2 or path[:2] in there.owned):
            yield path


def _surface_name(path: Path) -> str:
    surface = f"{_WORDS[path[0]]} {path[1]}"
    if len(path) == 2:
        return surface
    part = f"signal {path[3]}" if path[2] == "signals" else path[2].replace("cancel", "cancelling")
    return f"{part} of the {surface}"


def _way(surface: dict[str, Any]) -> dict[str, Any]:
    way = surface.get("transfer", {})
    return {name: part for name, part in way.items() if name not in _LIMITS}


def _limits(comparison: Comparison) -> Iterator[tuple[Path, SettingValue, SettingValue]]:
    for path, old in comparison.old.settings.items():
        new = comparison.new.settings.get(path)
        if path[0] == "operations" and new is not None and new != old:
            yield path, old, new


def _common_gates(comparison: Comparison) -> Iterator[tuple[Path, Gate, Gate]]:
    for path, old in comparison.old.gates.items():
        new = comparison.new.gates.get(path, old)
        if new != old:
            yield path, old, new


def _opened(comparison: Comparison) -> Iterator[Occurrence]:
    for path, old, new in _common_gates(comparison):
        if new is not None and old is None:
            yield Occurrence(path, f"was nobody's, and is open with {_listed_capabilities(new)}")
        elif new is not None and old is not None and (fewer := old - new):
            yield Occurrence(path, f"no longer needs {_listed_capabilities(fewer)}")


def _listed_capabilities(capabilities: frozenset[str]) -> str:
    return ", ".join(sorted(capabilities)) or "no capability"


def _errors(comparison: Comparison) -> Iterator[tuple[Path, set[str], set[str]]]:
    for section in ("rpc", "operations"):
        for name, old, new in comparison.common(section):
            if old.get("errors") != new.get("errors"):
                before, after = (
                    {error["type"] for error in surface.get("errors", ())} for surface in (old, new)
                )
                yield (section, name, "errors"), before, after


# What is said of these lies in the declaration, not in which payloads are valid.
_DECLARED: Final[tuple[DifferenceKind, ...]] = (
    "removed",
    "required-removed",
    "format-narrowed",
    "format-widened",
)
_NARROWING: Final[tuple[DifferenceKind, ...]] = ("required", "values", "closed", "format-narrowed")


def payload_refused(comparison: Comparison) -> Iterator[Occurrence]:
    """Whoever reads a payload accepts everything that may have been written."""
    for payload in comparison.payloads:
        if not payload.is_resource:
            yield from _refusals(comparison, payload)


def payload_unproven(comparison: Comparison) -> Iterator[Occurrence]:
    """That a changed payload stays readable is proved, not hoped."""
    if comparison.is_cut:
        message = f"more than {MAX_CHANGED} payloads changed; compare in smaller steps"
        yield Occurrence((), message)
    for payload in comparison.payloads:
        for asked, verdict in _verdicts(comparison, payload):
            if verdict.status == "unproven":
                claim = f"{asked.reader} accept everything that {asked.writer} may {asked.verb}"
                yield Occurrence(payload.path, f"it is not proven that {claim}: {verdict.reason}")


def payload_changed(comparison: Comparison) -> Iterator[Occurrence]:
    """A schema may change as long as everything stays readable."""
    for payload in comparison.payloads:
        proved = all(v.status == "contained" for _, v in _verdicts(comparison, payload))
        if proved and not any(_differences(comparison, payload, kind) for kind in _judged(payload)):
            yield Occurrence(payload.path, "the schema changed, and everything stays readable")


def member_required(comparison: Comparison) -> Iterator[Occurrence]:
    """A member that was optional does not become required, whoever sends it."""
    yield from _everywhere(comparison, "required")


def values_narrowed(comparison: Comparison) -> Iterator[Occurrence]:
    """A list of allowed values loses none, whoever sends them."""
    yield from _everywhere(comparison, "values")


def format_narrowed(comparison: Comparison) -> Iterator[Occurrence]:
    """A text need not have a format that it needed not have before, whoever sends it."""
    yield from _everywhere(comparison, "format-narrowed")


def format_widened(comparison: Comparison) -> Iterator[Occurrence]:
    """What old readers meet keeps the format that they were promised."""
    for payload in comparison.payloads_with("format-widened"):
        if "format-widened" in _judged(payload) and not payload.is_resource:
            yield from _differences(comparison, payload, "format-widened")


def object_closed(comparison: Comparison) -> Iterator[Occurrence]:
    """An object that is open to unknown members stays open."""
    yield from _everywhere(comparison, "closed")


def closed_object_grown(comparison: Comparison) -> Iterator[Occurrence]:
    """An object that is closed to unknown members gets no new ones."""
    for payload in comparison.payloads_with("grown"):
        if "grown" in _judged(payload):
            yield from _differences(comparison, payload, "grown")


def required_removed(comparison: Comparison) -> Iterator[Occurrence]:
    """A required member is not removed, whoever sends it."""
    for payload in comparison.payloads_with("required-removed"):
        if "required-removed" in _judged(payload):
            yield from _differences(comparison, payload, "required-removed")


def member_removed(comparison: Comparison) -> Iterator[Occurrence]:
    """A member that is no longer declared may be missed by those who read it."""
    for payload in comparison.payloads_with("removed"):
        yield from _differences(comparison, payload, "removed")
    for payload in comparison.payloads_with("required-removed"):
        if "required-removed" not in _judged(payload):
            yield from _differences(comparison, payload, "required-removed")


def resource_narrowed(comparison: Comparison) -> Iterator[Occurrence]:
    """The schema of a resource keeps accepting the values that are stored there."""
    for payload in comparison.payloads:
        if payload.is_resource:
            yield from _refusals(comparison, payload)
            for kind in _judged(payload):
                if kind in ("closed", "format-narrowed", "format-widened"):
                    yield from _differences(comparison, payload, kind)


def _judged(payload: ChangedPayload) -> Iterator[DifferenceKind]:
    """The kinds of differences that are reported for a payload whatever is proved."""
    yield from _NARROWING
    if payload.position.role != "stored":
        yield "grown"
        yield "required-removed"
    if payload.backward:
        yield "format-widened"


def _everywhere(comparison: Comparison, kind: DifferenceKind) -> Iterator[Occurrence]:
    for payload in comparison.payloads_with(kind):
        if not payload.is_resource:
            yield from _differences(comparison, payload, kind)


class _Question(NamedTuple):
    """Whether a reader's schema accepts everything that a writer may write."""

    writer: str
    verb: str
    reader: str
    schema: bytes


def _refusals(comparison: Comparison, payload: ChangedPayload) -> Iterator[Occurrence]:
    for asked, verdict in _verdicts(comparison, payload):
        if verdict.status == "not_contained":
            why = refusal_of(asked.schema, verdict.witness)
            message = f"{asked.writer} may {asked.verb} what {asked.reader} refuse: {why}"
            yield Occurrence(payload.path, message, verdict.witness)


def _verdicts(
    comparison: Comparison, payload: ChangedPayload
) -> Iterator[tuple[_Question, ContainmentVerdict]]:
    """The questions about a payload, with their answers."""
    prover = comparison.prover
    if payload.forward:
        yield _forward(payload), prover.reads(payload.old, payload.new)
    if payload.backward:
        yield _backward(payload), prover.reads(payload.new, payload.old)


def _forward(payload: ChangedPayload) -> _Question:
    services, schema = "services of the new one", payload.new
    if payload.position.role == "sent by callers":
        return _Question("callers of the old contract", "send", services, schema)
    if payload.position.durable:
        return _Question("records of the old contract", "hold", services, schema)
    return _Question("services of the old contract", "send", "readers of the new one", schema)


def _backward(payload: ChangedPayload) -> _Question:
    services, schema = "services of the old one", payload.old
    if payload.position.role == "sent by callers":
        return _Question("callers of the new contract", "send", services, schema)
    if payload.position.role == "stored":
        return _Question("services of the new contract", "store", services, schema)
    return _Question("services of the new contract", "send", "readers of the old one", schema)


def _differences(
    comparison: Comparison, payload: ChangedPayload, kind: DifferenceKind
) -> list[Occurrence]:
    """The differences of a kind that some payload shows."""
    found = []
    for difference in comparison.differences(payload):
        if difference.kind == kind:
            verdict = _verdict(comparison, payload, difference)
            if verdict is None or verdict.status != "contained":
                message = f"{difference.place or 'the payload'} {difference.what}"
                witness = ABSENT if verdict is None else _witness(comparison, payload, difference)
                found.append(Occurrence(payload.path, message, witness))
    return found


def _verdict(
    comparison: Comparison, payload: ChangedPayload, difference: Difference
) -> ContainmentVerdict | None:
    """Whether some payload shows a difference; None if it does not concern validity."""
    if difference.kind in _DECLARED:
        return None
    sender, reader = _ends(payload, difference)
    claim = reader if difference.claim is None else canonical.encode(difference.claim)
    return comparison.prover.keeps(sender, claim, strict=difference.kind == "closed")


def _witness(comparison: Comparison, payload: ChangedPayload, difference: Difference) -> object:
    """A payload that shows only this difference, or else one that shows it among others."""
    sender, reader = _ends(payload, difference)
    verdict = _verdict(comparison, payload, difference)
    witness = ABSENT if verdict is None else witness_of(verdict, reader)
    if witness is not ABSENT:
        return witness
    strict = difference.kind == "closed"
    return witness_of(comparison.prover.keeps(sender, reader, strict=strict), reader)


def _ends(payload: ChangedPayload, difference: Difference) -> tuple[bytes, bytes]:
    """The sender's and the reader's schema for the difference."""
    if difference.kind == "grown":
        return payload.new, payload.old
    return payload.old, payload.new


_RESOURCES: Final = (("resources", "kv"), ("resources", "store"))


# What peers that run now fail on, and what only code that is built against the contract relies on:
# a declaration that changed although every payload that is sent stays valid.
_LEVELS: Final[dict[Level, frozenset[str]]] = {
    "wire": frozenset(
        {
            "contract.lineage",
            "contract.kind",
            "surface.removed",
            "surface.moved",
            "surface.transfer",
            "surface.transfer-tightened",
            "capability.added",
            "capability.differs",
            "payload.refused",
            "payload.object-closed",
            "payload.unproven",
            "state.kind",
            "state.version-dropped",
            "state.version-ahead",
        }
    ),
    "source": frozenset(
        {
            "payload.member-required",
            "payload.values-narrowed",
            "payload.format-narrowed",
            "payload.format-widened",
            "payload.required-removed",
            "payload.closed-object-grown",
            "payload.member-removed",
            "surface.version",
            "error.added",
            "error.removed",
        }
    ),
}


def _rule(
    identity: str, category: Category, handler: RuleHandler, purpose: str = ""
) -> CompatibilityRule:
    found = (each for each, rules in _LEVELS.items() if identity in rules)
    level: Level = next(found, "full")
    return CompatibilityRule(
        identity, category, purpose or (handler.__doc__ or "").strip(), handler, level
    )


RULES: Final = (
    _rule("contract.lineage", "breaking", lineage),
    _rule("contract.kind", "breaking", contract_kind),
    _rule("surface.removed", "breaking", surface_removed),
    _rule("surface.moved", "breaking", subject_moved),
    _rule("surface.transfer", "breaking", transfer_changed),
    _rule("surface.transfer-tightened", "breaking", transfer_tightened),
    _rule("capability.added", "breaking", capability_added),
    _rule("capability.differs", "breaking", capability_differs),
    _rule("payload.refused", "breaking", payload_refused),
    _rule("payload.member-required", "breaking", member_required),
    _rule("payload.values-narrowed", "breaking", values_narrowed),
    _rule("payload.format-narrowed", "breaking", format_narrowed),
    _rule("payload.format-widened", "breaking", format_widened),
    _rule("payload.required-removed", "breaking", required_removed),
    _rule("payload.object-closed", "breaking", object_closed),
    _rule("payload.closed-object-grown", "breaking", closed_object_grown),
    _rule("state.kind", "breaking", state_kind),
    _rule("state.version-dropped", "breaking", state_version_dropped),
    _rule("state.version-ahead", "breaking", state_version_ahead),
    _rule("payload.unproven", "unproven", payload_unproven),
    _rule("capability.removed", "migration", capability_removed),
    _rule(
        "state.removed",
        "migration",
        entry_removed("state store", ("state",)),
        "A state store stays, and with it what is stored there.",
    ),
    _rule("job.keyed", "migration", keying_changed),
    _rule(
        "job.tightened",
        "migration",
        setting_changed("jobs", risky=True),
        "A queue does not lose, reject, skip or double jobs that it ran before.",
    ),
    _rule(
        "consumer.removed",
        "migration",
        entry_removed("consumer group", ("eventConsumers",)),
        "A consumer group keeps its name, and with it its place in the stream.",
    ),
    _rule("consumer.narrowed", "migration", consumer_narrowed),
    _rule(
        "consumer.delivery",
        "migration",
        setting_changed("eventConsumers", risky=True),
        "A consumer group is delivered events in a way that skips and doubles none.",
    ),
    _rule(
        "resource.removed",
        "migration",
        entry_removed("resource", *_RESOURCES),
        "A resource keeps its alias, and with it what is stored there.",
    ),
    _rule(
        "resource.shrunk",
        "migration",
        setting_changed("resources", risky=True),
        "A resource keeps as much, for as long, as before.",
    ),
    _rule("resource.narrowed", "migration", resource_narrowed),
    _rule("payload.member-removed", "note", member_removed),
    _rule("surface.version", "note", version_changed),
    _rule("error.added", "note", error_added),
    _rule("error.removed", "note", error_removed),
    _rule("capability.described", "note", capability_described),
    _rule("uses.removed", "note", uses_removed),
    _rule("surface.added", "update", surface_added),
    _rule("surface.transfer-loosened", "update", transfer_loosened),
    _rule("payload.changed", "update", payload_changed),
    _rule(
        "state.added",
        "update",
        entry_added("state store", ("state",)),
        "A contract may have more state stores than before.",
    ),
    _rule("state.version-new", "update", state_version_new),
    _rule(
        "job.loosened",
        "update",
        setting_changed("jobs", risky=False),
        "A queue may try longer, wait longer and admit more.",
    ),
    _rule(
        "consumer.added",
        "update",
        entry_added("consumer group", ("eventConsumers",)),
        "A contract may have more consumer groups than before.",
    ),
    _rule("consumer.widened", "update", consumer_widened),
    _rule(
        "consumer.loosened",
        "update",
        setting_changed("eventConsumers", risky=False),
        "A consumer group may be delivered events for longer, and wait longer.",
    ),
    _rule(
        "resource.added",
        "update",
        entry_added("resource", *_RESOURCES),
        "A contract may ask for more resources than before.",
    ),
    _rule(
        "resource.grown",
        "update",
        setting_changed("resources", risky=False),
        "A resource may keep more, and for longer, than before.",
    ),
    _rule("uses.added", "update", uses_added),
)
"""Every rule: what is breaking, unproven, a migration, worth a note, or an update."""
