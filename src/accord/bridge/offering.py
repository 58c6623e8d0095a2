"""Capabilities as a contract: each that answers at once is an RPC with the same schemas.

Pure: descriptions of capabilities in, a manifest out, whatever their order. What a contract cannot
say is left out with the reason. Streams do not cross: a capability that only streams is left out,
and one that may do either is asked for its answer at once.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from accord.bridge.errors import COMMUNITY_ERROR, ERROR_SCHEMA, BridgeError
from accord.bridge.naming import CONTRACT, is_of_a_service, rpc_name
from accord.community.envelope.names import Version
from accord.contracts import ContractError
from accord.contracts.authoring import Contract, Docs
from accord.kernel.finding import Finding

PERSONAL: Final = frozenset({"chat", "community"})
"""Whose capabilities speak for the person whose device the node is, and are nobody else's."""

_ERROR: Final = "CommunityError"
_OWN: Final = "$schema"


@dataclass(frozen=True, slots=True)
class Bridged:
    """A capability and the RPC that it is.

    Attributes:
        capability: Its name on the bus.
        version: The version that is called.
        rpc: Its name in the contract.
        may_stream: Whether it must be told to answer at once.
    """

    capability: str
    version: str
    rpc: str
    may_stream: bool


@dataclass(frozen=True, slots=True)
class Offering:
    """What of a community stands in the catalog.

    Attributes:
        manifest: The contract.
        bridged: Its RPCs, by name.
        left_out: Why the others do not cross: the rule, the capability, a sentence.
    """

    manifest: Mapping[str, Any]
    bridged: Mapping[str, Bridged]
    left_out: tuple[Finding, ...]


def offering(forms: Iterable[Mapping[str, Any]]) -> Offering:
    """Put capabilities into one contract; of each the newest version.

    Args:
        forms: Descriptions of capabilities, as their data files have them.

    Raises:
        BridgeError: They do not fit into one contract.
    """
    newest: dict[str, Mapping[str, Any]] = {}
    for form in forms:
        known = newest.get(form["name"])
        if known is None or Version.parse(known["version"]) < Version.parse(form["version"]):
            newest[form["name"]] = form
    fitting: list[Mapping[str, Any]] = []
    left_out: list[Finding] = []
    for name in sorted(newest):
        finding = _refusal(newest[name])
        if finding is None:
            fitting.append(newest[name])
        else:
            left_out.append(finding)
    try:
        manifest = _contract(fitting).manifest()
    except ContractError as error:
        raise BridgeError(
            f"the capabilities make no contract: {error.what}",
            where=CONTRACT,
            mend="bridge fewer of them with [bridge] capabilities",
        ) from error
    bridged = {each.rpc: each for each in map(_bridged, fitting)}
    return Offering(manifest, bridged, tuple(left_out))


def family(capability: str) -> str:
    """The capability of the contract that a caller needs: one for each prefix."""
    words = capability.split(".")
    return words[0] if words[0] != "experimental" else ".".join(words[:2])


def _refusal(form: Mapping[str, Any]) -> Finding | None:
    """Why a capability does not cross, if it does not."""
    name = form["name"]
    if is_of_a_service(name):
        return Finding("bridge.loop", name, "what comes from the fabric does not go back to it")
    if name.split(".")[0] in PERSONAL:
        return Finding("bridge.personal", name, "it speaks for the owner of this device")
    if form.get("response_schema") is None:
        return Finding("bridge.stream", name, "it answers by a stream only")
    try:
        _contract([form]).manifest()
    except ContractError as error:
        return Finding("bridge.schema", name, error.what)
    return None


def _contract(forms: Iterable[Mapping[str, Any]]) -> Contract:
    contract = Contract(
        CONTRACT,
        display_name="Community",
        description="What a community's node offers on its bus.",
    )
    contract.serves_callers()
    contract.schema(_ERROR, dict(ERROR_SCHEMA))
    contract.error(COMMUNITY_ERROR, _ERROR)
    families: set[str] = set()
    for form in forms:
        name, rpc, gate = form["name"], rpc_name(form["name"]), family(form["name"])
        if gate not in families:
            families.add(gate)
            contract.capability(
                gate, f"Use {gate}", f"Call the community's {gate} capabilities, as this station."
            )
        contract.schema(f"{rpc}.Request", _whole(form["request_schema"]))
        contract.schema(f"{rpc}.Response", _whole(form["response_schema"]))
        contract.rpc(
            rpc,
            f"{rpc}.Request",
            f"{rpc}.Response",
            call=[gate],
            errors=[COMMUNITY_ERROR],
            version=f"v{Version.parse(form['version']).major}",
            docs=Docs(str(form.get("description", "")) or name, name),
        )
    return contract


def _whole(schema: Any) -> Any:
    """A schema as a contract holds it: its dialect is the contract's."""
    if not isinstance(schema, Mapping):
        return schema
    return {key: value for key, value in schema.items() if key != _OWN}


def _bridged(form: Mapping[str, Any]) -> Bridged:
    return Bridged(form["name"], form["version"], rpc_name(form["name"]), _may_stream(form))


def _may_stream(form: Mapping[str, Any]) -> bool:
    """Whether the request says if the answer is a stream."""
    return form.get("stream_schema") is not None and "stream" in _members(form, "input")


def _members(form: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    found: Any = form["request_schema"]
    for step in ("properties", part, "properties"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}
