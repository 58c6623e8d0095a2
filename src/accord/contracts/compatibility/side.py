"""One side of a comparison: a contract as flat maps with defaults filled in.

Set-like lists are sets, and schemas are indexed by the place that uses them. Settings of jobs,
consumer groups, resources and transfers know which changes may lose, reject, skip or repeat work.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

from accord.contracts.errors import ContractError
from accord.contracts.manifest import JOB_DEFAULTS, is_reference, schema_references, validate
from accord.contracts.manifest.projection import projected
from accord.contracts.surfaces import SECTIONS, surfaces
from accord.kernel import canonical

Path = tuple[str, ...]
Risky = Callable[[Any, Any], bool]


def _shrinks(old: Any, new: Any) -> bool:
    # None is a default that the runtime chooses, so nothing is known of its size.
    return old is None or new is None or new < old


def _grows(old: Any, new: Any) -> bool:
    return old is None or new is None or new > old


def _hastens(old: list[int] | None, new: list[int] | None) -> bool:
    """Whether some redelivery comes earlier; the last delay of a list is repeated."""
    if old is None or new is None:
        return True
    last_old, last_new = (old or [0])[-1], (new or [0])[-1]
    pairs = zip_longest(old or [0], new or [0])
    return any(
        (last_new if after is None else after) < (last_old if before is None else before)
        for before, after in pairs
    )


def _always(_old: Any, _new: Any) -> bool:
    return True


def _never(_old: Any, _new: Any) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting."""

    risky: Risky  # whether a change from one value to another may do harm
    default: Any = None  # the value if it is left out; None if the runtime chooses
    zero_is_unlimited: bool = False  # whether 0 means no limit

    def effective(self, value: Any) -> Any:
        """The effective value, also of a missing one."""
        if value is None:
            return self.default
        return math.inf if self.zero_is_unlimited and value == 0 else value


_KV: Final = {
    "purpose": Setting(_never),
    "required": Setting(_never, True),
    "history": Setting(_shrinks, 1),
    "ttlMs": Setting(_shrinks, math.inf, zero_is_unlimited=True),
    "maxValueBytes": Setting(_shrinks, math.inf),
}
_STORE: Final = {
    "purpose": Setting(_never),
    "required": Setting(_never, True),
    "ttlMs": Setting(_shrinks, math.inf, zero_is_unlimited=True),
    "maxTotalBytes": Setting(_shrinks, math.inf),
    "maxObjectBytes": Setting(_shrinks, math.inf),
}
_JOB: Final = {
    "maxDeliver": Setting(_shrinks, JOB_DEFAULTS["maxDeliver"]),
    "backoffMs": Setting(_hastens, JOB_DEFAULTS["backoffMs"]),
    "ackWaitMs": Setting(_shrinks, JOB_DEFAULTS["ackWaitMs"]),
    "defaultDeadlineMs": Setting(_shrinks, math.inf),
    "progress": Setting(_never, True),
    "logs": Setting(_never, True),
    "dlq": Setting(_shrinks, True),
    "concurrency": Setting(_never, 1),
}
_KEYED: Final = {
    "key": Setting(_always),
    "maxActive": Setting(_shrinks, 1),
    "heartbeatIntervalMs": Setting(_grows),
    "heartbeatTtlMs": Setting(_shrinks),
    "stalePolicy": Setting(_always, "fail-stale"),
}
_QUEUE: Final = {
    "maxQueuedPerKey": Setting(_shrinks, 0),
    "whenFull": Setting(_always, "reject"),
}
_CONSUMER: Final = {
    "replay": Setting(_always),
    "ordering": Setting(_always),
    "concurrency": Setting(_always),
    "ackWaitMs": Setting(_shrinks),
    "maxDeliver": Setting(_shrinks),
    "backoffMs": Setting(_hastens),
}
_TRANSFER: Final = {
    "maxBytes": Setting(_shrinks, math.inf),
    "expiresInMs": Setting(_shrinks),
}


@dataclass(frozen=True, slots=True)
class SettingValue:
    """The value of a setting in one contract."""

    setting: Setting
    value: Any

    def spelled(self) -> str:
        """The value for a sentence."""
        if self.value is None:
            return "the default"
        return "unlimited" if self.value == math.inf else str(self.value)


def read_settings(contract: Mapping[str, Any]) -> dict[Path, SettingValue]:
    """Every setting of a projected contract, by place."""
    return dict(_read_settings(contract))


def _read_settings(contract: Mapping[str, Any]) -> Iterator[tuple[Path, SettingValue]]:
    resources = contract.get("resources", {})
    for alias, bucket in resources.get("kv", {}).items():
        yield from _values(("resources", "kv", alias), bucket, _KV)
    for alias, store in resources.get("store", {}).items():
        yield from _values(("resources", "store", alias), store, _STORE)
    for name, job in contract.get("jobs", {}).items():
        yield from _values(("jobs", name), job, _JOB)
        if "keyConcurrency" in job:  # the queue's policy is about keys
            yield from _values(("jobs", name, "keyConcurrency"), job["keyConcurrency"], _KEYED)
            yield from _values(("jobs", name, "queue"), job.get("queue", {}), _QUEUE)
    for name, group in contract.get("eventConsumers", {}).items():
        yield from _values(("eventConsumers", name), group, _CONSUMER)
    for name, operation in contract.get("operations", {}).items():
        if "transfer" in operation:
            yield from _values(("operations", name, "transfer"), operation["transfer"], _TRANSFER)


def _values(
    path: Path, entry: Mapping[str, Any], table: Mapping[str, Setting]
) -> Iterator[tuple[Path, SettingValue]]:
    for member, setting in table.items():
        yield (*path, member), SettingValue(setting, setting.effective(entry.get(member)))


SURFACES: Final = (*SECTIONS, "jobs")
DEFAULT_STATE_VERSION: Final = "v1"

Gate = frozenset[str] | None
"""The capabilities that an action needs, all of them; None if nobody may do it."""


@dataclass(frozen=True, slots=True)
class Side:
    """The facts of one contract."""

    contract: Mapping[str, Any]  # the projected manifest
    # Places of what others use: surfaces, signals, progress, results, cancelling.
    owned: dict[Path, None]
    gates: dict[Path, Gate]  # capabilities needed by the actions on surfaces
    payloads: dict[Path, bytes]  # payload schemas by place, as canonical JSON
    # For each state store the readable versions, with place and schema.
    state: dict[str, dict[str, tuple[Path, bytes]]]
    settings: dict[Path, SettingValue]

    def section(self, *path: str) -> Mapping[str, Any]:
        """A map of the contract; empty if there is none."""
        found = self.contract
        for step in path:
            found = found.get(step, {})
        return found


def read_side(manifest: Any, name: str) -> Side:
    """Read a manifest; raises ContractError with the findings if it is not valid."""
    if findings := validate(manifest):
        raise ContractError.invalid(f"the {name} manifest", findings)
    contract = projected(manifest)
    schemas = {name: canonical.encode(s) for name, s in contract.get("schemas", {}).items()}
    return Side(
        contract=contract,
        owned=dict.fromkeys(_owned(contract)),
        gates=dict(_gates(contract)),
        payloads=dict(_payloads(contract, schemas)),
        state={n: _versions(n, store, schemas) for n, store in contract.get("state", {}).items()},
        settings=read_settings(contract),
    )


def _owned(contract: Mapping[str, Any]) -> Iterator[Path]:
    for section in SURFACES:
        for name, surface in contract.get(section, {}).items():
            yield (section, name)
            for signal in surface.get("signals", ()):
                yield (section, name, "signals", signal)
            if section == "operations" and "progress" in surface:
                yield (section, name, "progress")
            if section == "jobs" and "result" in surface:
                yield (section, name, "result")
            if surface.get("cancel"):
                yield (section, name, "cancel")


def _gates(contract: Mapping[str, Any]) -> Iterator[tuple[Path, Gate]]:
    for surface in surfaces(contract):
        path: Path = (surface.section, surface.name)
        for action, needed in surface.gates.items():
            yield (*path, "capabilities", action), needed
        declared = contract[surface.section][surface.name]
        if declared.get("cancel") and "cancel" not in surface.gates:
            yield (*path, "capabilities", "cancel"), None


def _payloads(
    contract: Mapping[str, Any], schemas: dict[str, bytes]
) -> Iterator[tuple[Path, bytes]]:
    for path, name in schema_references(contract):
        if path[0] != "state":
            yield path, schemas[name]
    seen = set()
    for error in contract.get("errors", {}).values():
        # Of several declarations of one type the first counts.
        if error["type"] not in seen:
            schema = error.get("schema", True)
            text = schemas[schema["schema"]] if is_reference(schema) else canonical.encode(schema)
            yield ("errors", error["type"]), text
        seen.add(error["type"])


def _versions(
    name: str, store: Mapping[str, Any], schemas: dict[str, bytes]
) -> dict[str, tuple[Path, bytes]]:
    versions: dict[str, tuple[Path, bytes]] = {
        version: (("state", name, "acceptedVersions", version), schemas[reference["schema"]])
        for version, reference in store.get("acceptedVersions", {}).items()
    }
    current = state_version(store)
    return {**versions, current: (("state", name, "schema"), schemas[store["schema"]["schema"]])}


def state_version(store: Mapping[str, Any]) -> str:
    """The version under which a state store writes."""
    version: str = store.get("stateVersion", DEFAULT_STATE_VERSION)
    return version
