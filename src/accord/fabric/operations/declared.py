"""An operation as its contract declares it, ready to be kept by whoever calls or serves. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from accord.fabric.terms import Terms, missing
from accord.kernel.schema import Schema

KEEPALIVE_SECONDS: Final = 5.0
"""How often whoever waits or watches hears that somebody is there."""

WATCH_SECONDS: Final = 60.0
"""How long one request to wait or watch is answered; who wants more asks again before."""


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation as the contract declares it, ready to be kept."""

    name: str
    subject: str
    input: Schema
    output: Schema
    progress: Schema | None
    signals: Mapping[str, Schema]
    gates: Mapping[str, frozenset[str]]
    listed: frozenset[str]
    transfer: Mapping[str, Any] | None

    @classmethod
    def of(cls, terms: Terms, name: str) -> "Operation":
        """The operation of a name.

        Raises:
            NotFoundError: The contract has none.
        """
        declared = terms.manifest.get("operations", {}).get(name)
        if declared is None:
            raise missing(terms.id, "operations", name)
        return cls(
            name,
            declared["subject"],
            terms.schema(declared["input"]),
            terms.schema(declared["output"]),
            terms.schema(declared["progress"]) if "progress" in declared else None,
            {
                signal: terms.schema(each["input"])
                for signal, each in declared.get("signals", {}).items()
            },
            terms.surface("operations", name).gates,
            frozenset(declared.get("capabilities", {})),
            declared.get("transfer"),
        )
