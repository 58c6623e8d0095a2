"""Settings of jobs, consumer groups, resources and transfers (specification, sections 8a to 10a).

It owns what a setting is when it is left out, and whether another value may lose, reject, skip or
double work. What such a risk means for a contract, the rules say.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

Path = tuple[str, ...]
Risky = Callable[[Any, Any], bool]


def _shrinks(old: Any, new: Any) -> bool:
    # None is a default that the runtime chooses, so nothing is known of its size.
    return old is None or new is None or new < old


def _grows(old: Any, new: Any) -> bool:
    return old is None or new is None or new > old


def _hastens(old: list[int] | None, new: list[int] | None) -> bool:
    """Whether some redelivery comes earlier; beyond the list, its last delay is repeated."""
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
    """One setting.

    Attributes:
        risky: Whether going from one value to another may do harm.
        default: What holds when it is left out; None if the runtime chooses.
        zero_is_unlimited: Whether 0 says that there is no limit.
    """

    risky: Risky
    default: Any = None
    zero_is_unlimited: bool = False

    def effective(self, value: Any) -> Any:
        """What a value says, the missing one included."""
        if value is None:
            return self.default
        return math.inf if self.zero_is_unlimited and value == 0 else value


_BACKOFF: Final = [5000, 30000, 120000, 600000, 1800000]

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
    "maxDeliver": Setting(_shrinks, 5),
    "backoffMs": Setting(_hastens, _BACKOFF),
    "ackWaitMs": Setting(_shrinks, 300000),
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
class Value:
    """What a setting is in one contract."""

    setting: Setting
    value: Any

    def spelled(self) -> str:
        """For a sentence."""
        if self.value is None:
            return "the default"
        return "unlimited" if self.value == math.inf else str(self.value)


def settings(contract: Mapping[str, Any]) -> dict[Path, Value]:
    """Every setting of a projected contract, by its place."""
    return dict(_settings(contract))


def _settings(contract: Mapping[str, Any]) -> Iterator[tuple[Path, Value]]:
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
) -> Iterator[tuple[Path, Value]]:
    for member, setting in table.items():
        yield (*path, member), Value(setting, setting.effective(entry.get(member)))
