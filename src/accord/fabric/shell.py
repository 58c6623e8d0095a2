"""The contract under which a shell, or a page that does what a command does, uses another."""

from collections.abc import Mapping
from typing import Any, Final

from accord.contracts.authoring import Contract

SHELL: Final = "shell"


def shell_contract(target: Mapping[str, Any]) -> Contract:
    """A contract that uses what another offers to callers, and nothing else.

    Args:
        target: The other's manifest.
    """
    contract = Contract(
        f"{SHELL}.{target['id']}",
        display_name="Shell",
        description=f"Uses {target['id']} from a command line.",
    )
    contract.uses(
        "target",
        target["id"],
        rpc=target.get("rpc", {}),
        operations=target.get("operations", {}),
        subscribe=target.get("events", {}),
        feeds=target.get("feeds", {}),
    )
    return contract
