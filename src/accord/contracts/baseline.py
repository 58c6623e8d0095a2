"""Baseline uses: what every participant of a kind uses without having to say so.

They are merged while a contract is authored, never while a submitted manifest is digested.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from accord.contracts.errors import ContractError


@dataclass(frozen=True, slots=True)
class Baseline:
    """A use that the platform adds: an alias, the contract, and the names it selects."""

    alias: str
    contract: str
    section: str
    action: str
    names: tuple[str, ...]


HEALTH: Final = Baseline("health", "trellis.health@v1", "events", "publish", ("Health.Heartbeat",))
AUTH: Final = Baseline(
    "auth", "trellis.auth@v1", "rpc", "call", ("Auth.Sessions.Me", "Auth.Sessions.Logout")
)
STATE: Final = Baseline(
    *("state", "trellis.state@v1", "rpc", "call"),
    names=("State.Get", "State.Put", "State.Delete", "State.List"),
)


def baseline(manifest: Mapping[str, Any]) -> list[Baseline]:
    """The uses that a manifest gets by its kind and sections."""
    kind = manifest.get("kind")
    uses = []
    if kind in ("service", "device") and manifest.get("id") != HEALTH.contract:
        uses.append(HEALTH)
    if kind in ("app", "agent", "device"):
        uses.append(AUTH)
    if "state" in manifest:
        uses.append(STATE)
    return uses


def with_baseline(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest with its baseline uses; what the author wrote stays where it is.

    Raises:
        ContractError: An alias of the baseline names another contract.
    """
    result = dict(manifest)
    for use in baseline(manifest):
        result["uses"] = _merged(result.get("uses", {}), use)
    return result


def _merged(uses: Mapping[str, Any], use: Baseline) -> dict[str, Any]:
    # Where an alias is in both groups, the required one counts.
    group = next((g for g in ("required", "optional") if use.alias in uses.get(g, {})), "required")
    aliases = uses.get(group, {})
    written = aliases.get(use.alias, {"contract": use.contract})
    if written["contract"] != use.contract:
        raise ContractError(
            f"the alias {use.alias!r} is kept for {use.contract}",
            where=f"/uses/{group}/{use.alias}",
            mend="give the use another alias",
        )
    selector = written.get(use.section, {})
    names = list(dict.fromkeys((*selector.get(use.action, ()), *use.names)))
    merged = {**written, use.section: {**selector, use.action: names}}
    return {**uses, group: {**aliases, use.alias: merged}}
