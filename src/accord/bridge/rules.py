"""The mapping between both sides: names, contracts, capabilities and errors. Pure.

Each capability that does not stream is an RPC with the same schemas; what a contract cannot express
is left out with the reason. Each chosen RPC is a capability with the schemas of its contract. Error
codes of either side are preserved on the other.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from accord.community.errors import Code, CommunityError
from accord.community.rules.capabilities import CapabilityDescriptor, Version, read_descriptor
from accord.contracts import ContractError
from accord.contracts.authoring import Contract, Docs
from accord.contracts.export.layout import snake_name
from accord.fabric.rules.errors import (
    ConflictError,
    DeadlineError,
    FabricError,
    NotFoundError,
    RemoteError,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
)
from accord.kernel.errors import AccordError, Finding

COMMUNITY_ERROR: Final = "CommunityError"
"""The error that every RPC of the bridge declares."""

SERVICE_ERROR: Final = "service_error"
"""The detail of an error on the bus that holds a service's own error."""

ERROR_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "id": {"type": "string"},
        "type": {"const": COMMUNITY_ERROR},
        "message": {"type": "string"},
        "code": {"enum": sorted(code.value for code in Code)},
        "retryable": {"type": "boolean"},
        "details": {"type": "object"},
    },
    "required": ["type", "message", "code", "retryable"],
}

_NEAREST: Final[tuple[tuple[type[FabricError], Code], ...]] = (
    (ValidationError, Code.BAD_REQUEST),
    (UnauthorizedError, Code.UNAUTHORIZED),
    (NotFoundError, Code.NOT_FOUND),
    (ConflictError, Code.BAD_REQUEST),
    (DeadlineError, Code.TIMEOUT),
    (UnavailableError, Code.PARTITION),
    (RemoteError, Code.BAD_REQUEST),
)


class BridgeError(AccordError):
    """The bridge cannot be built from its settings."""


def to_fabric(error: CommunityError) -> RemoteError:
    """Convert an error of the community for a caller on the fabric."""
    said = {"code": error.code.value, "retryable": error.code.retryable}
    details = {"details": error.details} if error.details else {}
    return RemoteError(COMMUNITY_ERROR, str(error), {**said, **details})


def to_community(error: FabricError) -> CommunityError:
    """Convert an error of a service for a member of the community."""
    code = _told_code(error) or next(
        (code for kind, code in _NEAREST if isinstance(error, kind)), Code.INTERNAL_ERROR
    )
    said = error.members()
    return CommunityError(code, error.what, mend=error.mend, details={SERVICE_ERROR: said})


def _told_code(error: FabricError) -> Code | None:
    """The code of an error that came from the community in the first place."""
    told = error.members().get("code") if error.type == COMMUNITY_ERROR else None
    return next((code for code in Code if code.value == told), None)


CONTRACT: Final = "accord.community@v1"
"""The contract of the community's capabilities."""

CALLER: Final = "accord.bridge@v1"
"""The contract under which the bridge calls services for members."""

ROOT: Final = "Community"
SERVICES: Final = "experimental.service"
"""The prefix of services' capabilities; the specification reserves every shorter prefix."""

_JOINT: Final = re.compile(r"_([a-z])")
_SERVICE: Final = re.compile(
    r"(?P<name>[^@/\s]{1,200})@v(?P<version>[0-9]{1,4})/(?P<rpc>\S{1,200})"
)
_BUILT_IN: Final = "trellis."


@dataclass(frozen=True, slots=True)
class ChosenRpc:
    """An RPC of a contract that members may call, and its name on the bus."""

    contract: str
    rpc: str
    capability: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `contract@v1/Rpc.Name`; `BridgeError` if malformed or never bridged."""
        found = _SERVICE.fullmatch(text)
        if found is None:
            raise BridgeError(
                f"{text[:120]!r} names no RPC of a contract", mend="write it like shop@v1/Shop.Find"
            )
        contract = f"{found['name']}@v{found['version']}"
        if contract in (CONTRACT, CALLER):
            raise BridgeError(
                "an RPC of the bridge itself cannot be bridged", where=repr(text[:120])
            )
        if contract.startswith(_BUILT_IN):
            raise BridgeError(
                "members may not call the authority's own services", where=repr(text[:120])
            )
        words = (
            _capability_word(found["name"]),
            f"v{int(found['version'])}",
            _capability_word(found["rpc"]),
        )
        return cls(contract, found["rpc"], ".".join((SERVICES, *words)))


def rpc_name(capability: str) -> str:
    """Return the RPC of a capability: `rag.list_corpora` is `Community.Rag.ListCorpora`."""
    words = (_JOINT.sub(lambda joint: joint[1].upper(), word) for word in capability.split("."))
    return ".".join((ROOT, *(word[0].upper() + word[1:] for word in words)))


def is_service_capability(capability: str) -> bool:
    """Whether a capability is a bridged service."""
    return capability.startswith(f"{SERVICES}.")


def _capability_word(text: str) -> str:
    word = snake_name(text)
    return word if word[0].isalpha() else f"n{word}"


_EMPTY: Final = {"type": "object", "properties": {}, "additionalProperties": False}
_META: Final = {
    "type": "object",
    "properties": {"ms": {"type": "number", "minimum": 0}, "trace_id": {"type": "string"}},
    "required": ["ms", "trace_id"],
}
_DRAFT: Final = "https://json-schema.org/draft/2019-09/schema"


def choose_rpcs(texts: Iterable[str]) -> tuple[ChosenRpc, ...]:
    """Read which RPCs members may call; `BridgeError` if malformed or not distinct capabilities."""
    known: dict[str, ChosenRpc] = {}
    for text in dict.fromkeys(texts):
        chosen = ChosenRpc.parse(text)
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


def caller_contract(chosen: Iterable[ChosenRpc]) -> Contract:
    """Return the contract under which the bridge calls the chosen RPCs."""
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


def borrowed_capability(
    manifest: Mapping[str, Any], chosen: ChosenRpc, level: str
) -> CapabilityDescriptor:
    """Return the capability for an RPC.

    Args:
        level: The least trust level of a caller.

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
        raise BridgeError("file transfers are not bridged", where=f"{chosen.contract}/{chosen.rpc}")
    schemas = manifest["schemas"]
    request = {"params": _EMPTY, "input": schemas[declared["input"]["schema"]]}
    response = {"output": schemas[declared["output"]["schema"]], "meta": _META}
    try:
        return read_descriptor(
            {
                "name": chosen.capability,
                "version": "1.0",
                "description": f"{chosen.rpc} of {chosen.contract}.",
                "stability": "experimental",
                "trust": level,
                # A contract does not say whether an RPC is idempotent.
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


PERSONAL: Final = frozenset({"chat", "community"})
"""Families of capabilities that act for the owner of the node and are not bridged."""

_ERROR: Final = "CommunityError"
_OWN: Final = "$schema"


@dataclass(frozen=True, slots=True)
class BridgedCapability:
    """A capability and its RPC.

    Attributes:
        may_stream: Whether requests must ask for an answer that is no stream.
    """

    capability: str
    version: str
    rpc: str
    may_stream: bool


@dataclass(frozen=True, slots=True)
class BridgeOffering:
    """The contract of a community.

    Attributes:
        left_out: Why other capabilities are not in it.
    """

    manifest: Mapping[str, Any]
    bridged: Mapping[str, BridgedCapability]
    left_out: tuple[Finding, ...]


def make_offering(forms: Iterable[Mapping[str, Any]]) -> BridgeOffering:
    """Make one contract of the newest version of each capability, or raise `BridgeError`."""
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
            f"no valid contract can be made of the capabilities: {error.what}",
            where=CONTRACT,
            mend="bridge fewer of them with [bridge] capabilities",
        ) from error
    bridged = {each.rpc: each for each in map(_bridged_capability, fitting)}
    return BridgeOffering(manifest, bridged, tuple(left_out))


def family(capability: str) -> str:
    """Return the permission that a caller of a capability needs: one for each prefix."""
    words = capability.split(".")
    return words[0] if words[0] != "experimental" else ".".join(words[:2])


def _refusal(form: Mapping[str, Any]) -> Finding | None:
    """Why a capability is not bridged; None if it is."""
    name = form["name"]
    if is_service_capability(name):
        return Finding("bridge.loop", name, "it comes from the fabric already")
    if family(name).removeprefix("experimental.") in PERSONAL:
        return Finding("bridge.personal", name, "it acts for the owner of this device")
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
    """A schema without its dialect, which is the contract's."""
    if not isinstance(schema, Mapping):
        return schema
    return {key: value for key, value in schema.items() if key != _OWN}


def _bridged_capability(form: Mapping[str, Any]) -> BridgedCapability:
    return BridgedCapability(
        form["name"], form["version"], rpc_name(form["name"]), _may_stream(form)
    )


def _may_stream(form: Mapping[str, Any]) -> bool:
    """Whether the request says if the answer is a stream."""
    return form.get("stream_schema") is not None and "stream" in _members(form, "input")


def _members(form: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    found: Any = form["request_schema"]
    for step in ("properties", part, "properties"):
        found = found.get(step) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}
