"""Desired state and bindings as canonical JSON, and back."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from accord.authority.records import Desired
from accord.contracts.permissions import Bindings, Consumer, Queue
from accord.kernel import canonical


def encode(value: Any) -> str:
    """Write JSON."""
    return canonical.encode(value).decode()


def decode(text: str) -> Any:
    """Read JSON that was written here."""
    return canonical.decode(text.encode())


def encode_desired(desired: Desired) -> str:
    """Write desired state, but for its contracts, which have a table of their own."""
    return encode(
        {
            "surfaces": sorted(desired.surfaces),
            "capabilities": sorted(desired.capabilities),
            "resources": [
                [*key, dict(desired.resources[key])] for key in sorted(desired.resources)
            ],
            "shapes": dict(desired.shapes),
        }
    )


def decode_desired(text: str, contracts: Mapping[str, str]) -> Desired:
    """Read desired state."""
    read = decode(text)
    return Desired(
        contracts=contracts,
        surfaces=frozenset(read["surfaces"]),
        capabilities=frozenset(read["capabilities"]),
        resources={(kind, contract, alias): it for kind, contract, alias, it in read["resources"]},
        shapes=read["shapes"],
    )


def encode_bindings(bindings: Mapping[str, Bindings]) -> str:
    """Write what is bound, by contract id."""
    return encode({identity: asdict(bound) for identity, bound in bindings.items()})


def decode_bindings(text: str) -> dict[str, Bindings]:
    """Read what is bound."""
    return {
        identity: Bindings(
            **{
                **bound,
                "consumers": {alias: Consumer(**it) for alias, it in bound["consumers"].items()},
                "jobs": {alias: Queue(**it) for alias, it in bound["jobs"].items()},
            }
        )
        for identity, bound in decode(text).items()
    }
