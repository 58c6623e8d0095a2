"""AsyncAPI 3: what an application sends becomes events, what it receives RPCs.

An address's parameters are tokens of the subject where the document says where in the payload their
values are.
"""

from typing import Any, Final

from accord.contracts.errors import ContractError
from accord.contracts.imports.document import Draft, Imported, Source, docs_of, is_json, mappings
from accord.kernel.canonical import pointer

_PAYLOAD: Final = "$message.payload#"
_LOST: Final = {
    "bindings": "bindings of a protocol",
    "security": "security: a contract has capabilities, which its author chooses",
    "traits": "traits",
    "externalDocs": "links to other documentation",
    "tags": "groups for readers",
}


def read_asyncapi(document: Any, identity: str) -> Imported:
    """The contract of an AsyncAPI document; ContractError if it is none, or has no operation."""
    source = Source(document, "AsyncAPI")
    version = str(source.document.get("asyncapi", ""))
    if not version.startswith("3."):
        raise ContractError(
            f"AsyncAPI {version or '?'} is not read",
            where="/asyncapi",
            mend="convert it to AsyncAPI 3.0, for instance with `asyncapi convert`",
        )
    draft = Draft(source, identity, source.document.get("info"), identity)
    source.lose_info()
    source.lose_members(
        "",
        source.document,
        servers="addresses: a contract has subjects, and its deployments say where",
    )
    empty = True
    for name, entry, place in source.entries(source.document.get("operations"), "/operations"):
        empty = not _operation(draft, name, entry, place) and empty
    if empty:
        raise ContractError("the document has no operation", where="/operations")
    return draft.imported()


def _operation(draft: Draft, name: str, entry: dict[str, Any], place: str) -> bool:
    source = draft.source
    channel, at = source.resolve(entry.get("channel", {}), f"{place}/channel")
    if not isinstance(channel, dict):
        return False
    source.lose_members(place, entry, **_LOST)
    source.lose_members(at, channel, servers="addresses", bindings=_LOST["bindings"])
    messages = _messages(source, entry, channel, place, at)
    docs = docs_of(entry.get("summary"), entry.get("description"), channel.get("description"))
    action = entry.get("action")
    if action not in ("send", "receive") or not messages:
        source.lose(place, "an operation that neither sends nor receives messages")
        return False
    if action == "send":
        for key, message, there in messages:
            wanted = name if len(messages) == 1 else f"{name} {key}"
            params = _parameters(source, channel, at)
            payload = _payload(draft, f"{wanted} Event", message, there)
            draft.contract.event(draft.name(wanted), payload, params=params, **docs)
        return True
    reply = _reply(draft, name, entry, place)
    if channel.get("parameters"):
        source.lose(f"{at}/parameters", "tokens of a subject, which only events have")
    for key, message, there in messages:
        wanted = name if len(messages) == 1 else f"{name} {key}"
        payload = _payload(draft, f"{wanted} Request", message, there)
        draft.contract.rpc(draft.name(wanted), payload, reply, **docs)
    draft.has_callers = True
    return True


def _messages(
    source: Source, entry: dict[str, Any], channel: dict[str, Any], place: str, at: str
) -> list[tuple[str, dict[str, Any], str]]:
    """The messages of an operation: those that it lists, or all of its channel."""
    listed = entry.get("messages")
    if isinstance(listed, list):
        given = [
            (str(number), each, f"{place}/messages/{number}") for number, each in enumerate(listed)
        ]
    else:
        given = [
            (key, each, f"{at}/messages{pointer(key)}")
            for key, each in mappings(channel.get("messages"))
        ]
    found = []
    for key, each, where in given:
        message, there = source.resolve(each, where)
        if isinstance(message, dict):
            own = message.get("name")
            found.append((own if isinstance(own, str) else key, message, there))
    return found


def _payload(draft: Draft, wanted: str, message: dict[str, Any], place: str) -> str:
    source = draft.source
    source.lose_members(
        place,
        message,
        headers="headers of a message",
        correlationId="how answers are matched: the wire does it",
        bindings=_LOST["bindings"],
        traits="traits",
    )
    kind = message.get("contentType", source.document.get("defaultContentType", "application/json"))
    payload, at = message.get("payload", True), f"{place}/payload"
    if not is_json(kind):
        source.lose(f"{place}/contentType", f"payloads as {kind}; the contract's are JSON")
    if isinstance(payload, dict) and "schemaFormat" in payload:
        format_, payload, at = (
            str(payload["schemaFormat"]),
            payload.get("schema", True),
            f"{at}/schema",
        )
        if not any(word in format_ for word in ("json", "asyncapi", "schema+yaml")):
            source.lose(at, f"a schema as {format_}; any value is accepted")
            payload = True
    return draft.schema(wanted, payload, at)


def _reply(draft: Draft, name: str, entry: dict[str, Any], place: str) -> str:
    source = draft.source
    reply, at = source.resolve(entry.get("reply"), f"{place}/reply")
    if not isinstance(reply, dict):
        source.lose(place, "that there is no answer; the RPC answers null")
        return draft.own_schema(f"{name} Reply", {"type": "null"})
    channel, there = source.resolve(reply.get("channel", {}), f"{at}/channel")
    messages = _messages(source, reply, channel if isinstance(channel, dict) else {}, at, there)
    for _, _, lost in messages[1:]:
        source.lose(lost, f"another answer of {name}: an RPC has one")
    if not messages:
        source.lose(at, "an answer without a message; the RPC answers null")
        return draft.own_schema(f"{name} Reply", {"type": "null"})
    return _payload(draft, f"{name} Reply", *messages[0][1:])


def _parameters(source: Source, channel: dict[str, Any], at: str) -> list[str]:
    """The pointers into the payload at which the values of an address's parameters are."""
    pointers = []
    for name, entry, place in source.entries(channel.get("parameters"), f"{at}/parameters"):
        location = entry.get("location")
        if isinstance(location, str) and location.startswith(f"{_PAYLOAD}/"):
            pointers.append(location.removeprefix(_PAYLOAD))
        else:
            source.lose(place, f"the parameter {name!r}: the payload does not have its value")
    return pointers
