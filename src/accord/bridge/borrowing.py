"""Services as capabilities: each RPC that the operator chose, with the schemas of its contract.

Pure. Owns which can be chosen, the form of such a capability, and the contract under which the
bridge calls for members: it uses just what was chosen, so the authority's grants say the same as
the operator's list.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from accord.bridge.errors import BridgeError
from accord.bridge.naming import CALLER, Chosen
from accord.community.envelope.schemas import Descriptor, describe
from accord.community.errors import CommunityError
from accord.contracts import ContractError
from accord.contracts.authoring import Contract

_EMPTY: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_META: Final = {
    "type": "object",
    "properties": {"ms": {"type": "number", "minimum": 0}, "trace_id": {"type": "string"}},
    "required": ["ms", "trace_id"],
}
_DRAFT: Final = "https://json-schema.org/draft/2019-09/schema"


def choose(texts: Iterable[str]) -> tuple[Chosen, ...]:
    """Read which RPCs members may call.

    Raises:
        BridgeError: One cannot be read, or two would be the same capability.
    """
    known: dict[str, Chosen] = {}
    for text in dict.fromkeys(texts):
        chosen = Chosen.parse(text)
        other = known.setdefault(chosen.capability, chosen)
        if other != chosen:
            raise BridgeError(
                f"it would be {chosen.capability}, as {other.contract}/{other.rpc} is",
                where=repr(text[:120]),
                mend="leave one of them out",
            )
        try:
            caller_contract([chosen]).manifest()
        except ContractError as error:
            raise BridgeError(error.what, where=repr(text[:120])) from error
    return tuple(known.values())


def caller_contract(chosen: Iterable[Chosen]) -> Contract:
    """The contract under which the bridge calls what was chosen."""
    contract = Contract(
        CALLER,
        display_name="Bridge",
        description="Calls services for members of the community.",
    )
    by_contract: dict[str, list[str]] = {}
    for each in chosen:
        by_contract.setdefault(each.contract, []).append(each.rpc)
    for identity in sorted(by_contract):
        contract.uses(identity, identity, rpc=by_contract[identity])
    return contract


def borrowed(manifest: Mapping[str, Any], chosen: Chosen, level: str) -> Descriptor:
    """The capability that an RPC is on the bus.

    Args:
        manifest: The contract, as the catalog has it.
        chosen: The RPC.
        level: How far the community must trust a caller.

    Raises:
        BridgeError: The contract has no such RPC, or it cannot be a capability.
    """
    declared = manifest.get("rpc", {}).get(chosen.rpc)
    if declared is None:
        raise BridgeError(
            f"the contract has no RPC {chosen.rpc!r}",
            where=chosen.contract,
            mend="look for its name with accord contract show",
        )
    if "transfer" in declared:
        raise BridgeError("files do not cross", where=f"{chosen.contract}/{chosen.rpc}")
    schemas = manifest["schemas"]
    request = {"params": _EMPTY, "input": schemas[declared["input"]["schema"]]}
    response = {"output": schemas[declared["output"]["schema"]], "meta": _META}
    try:
        return describe(
            {
                "name": chosen.capability,
                "version": "1.0",
                "description": f"{chosen.rpc} of {chosen.contract}.",
                "stability": "experimental",
                "trust": level,
                # Whether asking twice is as good as asking once, a contract does not say.
                "idempotent": False,
                "errors": ["not_found"],
                "request_schema": _closed(request),
                "response_schema": _closed(response),
            }
        )
    except CommunityError as error:
        raise BridgeError(
            f"it cannot be a capability: {error.what}", where=f"{chosen.contract}/{chosen.rpc}"
        ) from error


def _closed(members: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "$schema": _DRAFT,
        "type": "object",
        "properties": dict(members),
        "required": sorted(members),
        "additionalProperties": False,
    }
