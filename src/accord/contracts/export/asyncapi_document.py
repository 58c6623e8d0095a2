"""AsyncAPI 3.0 documents of a contract or a catalog.

Written from the owner's view: it receives calls, operations and feed requests, and sends events.
Jobs, state and resources are left out. Schemas use AsyncAPI's dialect, a superset of draft 7,
without constructs that it would read differently.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from typing import Any, Final

from accord.contracts.errors import ContractError
from accord.contracts.export.layout import UniqueNames
from accord.contracts.manifest import digest, normalize
from accord.contracts.surfaces import control_subject, template_pointers
from accord.kernel.schema import compile_schema

# Patterns that ECMAScript reads too: no flags, named groups or classes of its own making.
_ESCAPED: Final = r"\\[dDwWsStnrfv.*+?^${}()|\[\]\\/]"
_IN_CLASS: Final = rf"(?:[^\\\[\]-]-[^\\\[\]-]|[^\\\[\]-]|{_ESCAPED})"
_ATOM: Final = rf"(?:[^\\()\[\]{{}}*+?|^$]|{_ESCAPED}|\[\^?+-?{_IN_CLASS}*+-?\]|\))"
_TIMES: Final = r"(?:(?:[*+?]|\{[0-9]{1,4}(?:,[0-9]{0,4})?\})\??+)?+"
_PORTABLE: Final = re.compile(rf"(?:{_ATOM}{_TIMES}|\((?:\?:)?+|[|^$]|\\[bB])*+")


def asyncapi_schema(schema: Any) -> Any:
    """A schema as AsyncAPI writes it."""
    if isinstance(schema, bool):
        return schema
    written = {
        keyword: _COPIES[keyword](value)
        for keyword, value in schema.items()
        if keyword in _COPIES and not _is_misread(keyword, value)
    }
    dependencies: dict[str, Any] = {}
    for keyword in _DEPENDENCIES:
        dependencies |= _members(schema.get(keyword, {}))
    return {**written, "dependencies": dependencies} if dependencies else written


def _same(value: Any) -> Any:
    return value


def _each(value: list[Any]) -> list[Any]:
    return [asyncapi_schema(part) for part in value]


def _items(value: Any) -> Any:
    return _each(value) if isinstance(value, list) else asyncapi_schema(value)


def _members(value: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: part if isinstance(part, list) else asyncapi_schema(part)
        for name, part in value.items()
        if name != "$ref"
    }


def _patterns(value: Mapping[str, Any]) -> dict[str, Any]:
    return _members({name: part for name, part in value.items() if _PORTABLE.fullmatch(name)})


_DEPENDENCIES: Final = ("dependentRequired", "dependencies", "dependentSchemas")
_VALUES: Final = ("const", "enum", "default", "examples")
_COPIES: Final[dict[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(
        (
            *("type", "multipleOf", "maximum", "exclusiveMaximum", "minimum", "exclusiveMinimum"),
            *("maxLength", "minLength", "maxItems", "minItems", "uniqueItems", "pattern"),
            *("maxProperties", "minProperties", "required", "title", "description", "format"),
            *("readOnly", "writeOnly", "contentMediaType", "contentEncoding", "deprecated"),
            *_VALUES,
        ),
        _same,
    ),
    **dict.fromkeys(
        (
            *("additionalItems", "contains", "additionalProperties", "propertyNames"),
            *("if", "then", "else", "not"),
        ),
        asyncapi_schema,
    ),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _each),
    "items": _items,
    "properties": _members,
    "patternProperties": _patterns,
}


def _is_misread(keyword: str, value: Any) -> bool:
    if keyword == "pattern":
        return _PORTABLE.fullmatch(value) is None
    return keyword in _VALUES and _refers(value)


def _refers(value: Any) -> bool:
    """Whether a plain value contains something that reads like a reference."""
    if isinstance(value, Mapping):
        return "$ref" in value or any(map(_refers, value.values()))
    return isinstance(value, list) and any(map(_refers, value))


_UNNAMED: Final = re.compile(r"[^A-Za-z0-9._-]+")
_REPLY_TO: Final = {
    "location": "$message.header#/reply",
    "description": "The inbox that the request names as its reply subject.",
}


class AsyncApiDocument:
    """A document being written, with unique identifiers."""

    def __init__(self) -> None:
        self._channels: dict[str, Any] = {}
        self._operations: dict[str, Any] = {}
        self._schemas: dict[str, Any] = {}
        self._channel_keys = UniqueNames()
        self._schema_keys = UniqueNames()
        self._prefix = ""
        self._named: dict[str, str] = {}

    def whole(self, info: Mapping[str, Any]) -> dict[str, Any]:
        """The document so far."""
        return {
            "asyncapi": "3.0.0",
            "info": dict(info),
            "defaultContentType": "application/json",
            "channels": self._channels,
            "operations": self._operations,
            "components": {"schemas": self._schemas},
        }

    def add(self, contract: Mapping[str, Any], prefix: str = "") -> None:
        """Add the surfaces of a contract."""
        self._prefix = prefix
        schemas = contract.get("schemas", {})
        for name in sorted(schemas):
            self._named[name] = self._schema_keys.new(_key(prefix + name))
            # A payload of AsyncAPI is an object, where a schema may also be true or false.
            schema = schemas[name]
            if isinstance(schema, bool):
                schema = {} if schema else {"not": {}}
            self._schemas[self._named[name]] = asyncapi_schema(schema)
        for section, write in (
            ("rpc", self._rpc),
            ("operations", self._operation),
            ("events", self._event),
            ("feeds", self._feed),
        ):
            for name, surface in sorted(contract.get(section, {}).items()):
                write(name, surface)

    def _rpc(self, name: str, rpc: Mapping[str, Any]) -> None:
        self._receive(
            f"rpc.{name}",
            rpc,
            rpc["subject"],
            {"request": self._payload(rpc["input"])},
            {"reply": self._payload(rpc["output"])},
        )

    def _operation(self, name: str, operation: Mapping[str, Any]) -> None:
        snapshot = {
            "type": "object",
            "required": ["revision"],
            "properties": {
                "revision": {"type": "integer", "minimum": 1},
                **{
                    part: self._payload(operation[part])
                    for part in ("progress", "output")
                    if part in operation
                },
            },
        }
        accepted = _frame("kind", "accepted", {"ref": {"type": "object"}, "snapshot": snapshot})
        self._receive(
            f"operations.{name}",
            operation,
            operation["subject"],
            {"request": self._payload(operation["input"])},
            {"accepted": accepted},
        )
        actions = ["get", "wait", "watch", *(["cancel"] if operation.get("cancel") else [])]
        identity = {"operationId": {"type": "string"}}
        requests = {action: _frame("action", action, identity) for action in actions}
        keys = UniqueNames(requests)
        for signal, declared in sorted(operation.get("signals", {}).items()):
            members = {
                **identity,
                "signal": {"type": "string", "enum": [signal]},
                "input": self._payload(declared["input"]),
            }
            requests[keys.new(_key(f"signal.{signal}"))] = _frame("action", "signal", members)
        self._receive(
            f"operations.{name}.control",
            operation,
            control_subject(operation["subject"]),
            requests,
            {"snapshot": _frame("kind", "snapshot", {"snapshot": snapshot})},
        )

    def _event(self, name: str, event: Mapping[str, Any]) -> None:
        address, parameters, keys = event["subject"], {}, UniqueNames()
        for pointer in template_pointers(event["subject"]):
            parameter = keys.new(_key(pointer[1:]).replace(".", "_"))
            parameters[parameter] = {"location": f"$message.payload#{pointer}"}
            address = address.replace(f"{{{pointer}}}", f"{{{parameter}}}", 1)
        channel = self._channel(f"events.{name}", address, {"event": self._payload(event["event"])})
        if parameters:
            self._channels[channel]["parameters"] = parameters
        self._operations[channel] = _operation_object("send", channel, ["event"], event)

    def _feed(self, name: str, feed: Mapping[str, Any]) -> None:
        self._receive(
            f"feeds.{name}",
            feed,
            feed["subject"],
            {"request": self._payload(feed["input"])},
            {"event": self._payload(feed["event"])},
        )

    def _receive(
        self,
        name: str,
        surface: Mapping[str, Any],
        subject: str,
        requests: Mapping[str, Any],
        replies: Mapping[str, Any],
    ) -> None:
        channel = self._channel(name, subject, requests)
        answers = self._channel(f"{name}.reply", None, replies)
        written = _operation_object("receive", channel, requests, surface)
        written["reply"] = {
            "address": _REPLY_TO,
            "channel": {"$ref": f"#/channels/{answers}"},
            "messages": [{"$ref": f"#/channels/{answers}/messages/{reply}"} for reply in replies],
        }
        self._operations[channel] = written

    def _channel(self, name: str, address: str | None, payloads: Mapping[str, Any]) -> str:
        key = self._channel_keys.new(_key(self._prefix + name))
        messages = {message: {"payload": payload} for message, payload in payloads.items()}
        self._channels[key] = {"address": address, "title": name, "messages": messages}
        return key

    def _payload(self, reference: Mapping[str, str]) -> dict[str, str]:
        return {"$ref": f"#/components/schemas/{self._named[reference['schema']]}"}


def _key(name: str) -> str:
    """A valid AsyncAPI identifier close to a name."""
    return _UNNAMED.sub("_", name)


def _frame(member: str, value: str, members: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a protocol frame, identified by one member."""
    return {
        "type": "object",
        "required": [member, *(name for name in members if name != "ref")],
        "properties": {member: {"type": "string", "enum": [value]}, **members},
    }


def _operation_object(
    action: str, channel: str, messages: Iterable[str], surface: Mapping[str, Any]
) -> dict[str, Any]:
    docs = surface.get("docs", {})
    members = {
        "action": action,
        "channel": {"$ref": f"#/channels/{channel}"},
        "messages": [{"$ref": f"#/channels/{channel}/messages/{name}"} for name in messages],
        "summary": docs.get("summary"),
        "description": docs.get("markdown"),
        "x-capabilities": surface.get("capabilities"),
        "x-errors": [error["type"] for error in surface.get("errors", ())] or None,
        "x-transfer": surface.get("transfer"),
    }
    return {name: value for name, value in members.items() if value is not None}


__all__ = ["asyncapi"]


def asyncapi(document: Any, manifests: Iterable[Any] = ()) -> dict[str, Any]:
    """The AsyncAPI document of a contract or a catalog (`trellis.catalog.v1`).

    `manifests` are the contracts that a catalog lists; one that is missing appears without its
    surfaces. Raises ContractError if a contract or the catalog is not valid.
    """
    if isinstance(document, dict) and document.get("format") == "trellis.catalog.v1":
        return _catalog(document, manifests)
    named = digest(document)
    contract = normalize(document)
    written = AsyncApiDocument()
    written.add(contract)
    return written.whole(
        {
            "title": contract["displayName"] or contract["id"],
            "version": f"{contract['id'].rpartition('@v')[2]}.0.0",
            "description": contract.get("docs", {}).get("markdown") or contract["description"],
            "x-contracts": [{"id": contract["id"], "digest": named}],
        }
    )


def _catalog(catalog: Mapping[str, Any], manifests: Iterable[Any]) -> dict[str, Any]:
    shape = json.loads(
        (resources.files("accord.contracts") / "data" / "trellis.catalog.v1.json").read_bytes()
    )
    findings = compile_schema(shape).findings(catalog)
    if findings:
        raise ContractError(f"not a catalog: {findings[0]}", findings=findings)
    given = {digest(manifest): manifest for manifest in manifests}
    entries = sorted({(entry["id"], entry["digest"]) for entry in catalog["contracts"]})
    written = AsyncApiDocument()
    for identity, named in entries:
        if named in given:
            written.add(normalize(given[named]), f"{identity}.{named[:12]}.")
    return written.whole(
        {
            "title": "Catalog",
            "version": "1.0.0",
            "description": f"The surfaces of {len(entries)} active contracts.",
            "x-contracts": [
                {"id": identity, "digest": named, "documented": named in given}
                for identity, named in entries
            ],
        }
    )
