"""An AsyncAPI document being written: channels, operations and schemas of contracts.

It speaks as the owner of the surfaces. It takes contracts that `validate` accepts, normalised.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from accord.contracts.asyncapi_export.schemas import documented
from accord.contracts.naming import Names
from accord.contracts.subjects import control_subject, template_pointers

_UNNAMED: Final = re.compile(r"[^A-Za-z0-9._-]+")
_REPLY_TO: Final = {
    "location": "$message.header#/reply",
    "description": "The inbox that the request names as its reply subject.",
}


class Document:
    """A document being written; identifiers in it are unique, whatever the names are."""

    def __init__(self) -> None:
        self._channels: dict[str, Any] = {}
        self._operations: dict[str, Any] = {}
        self._schemas: dict[str, Any] = {}
        self._channel_keys = Names()
        self._schema_keys = Names()
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
        """Write the surfaces of a contract."""
        self._prefix = prefix
        schemas = contract.get("schemas", {})
        for name in sorted(schemas):
            self._named[name] = self._schema_keys.new(_key(prefix + name))
            # A payload of AsyncAPI is an object, where a schema may also be true or false.
            schema = schemas[name]
            if isinstance(schema, bool):
                schema = {} if schema else {"not": {}}
            self._schemas[self._named[name]] = documented(schema)
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
        keys = Names(requests)
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
        address, parameters, keys = event["subject"], {}, Names()
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
    """What AsyncAPI takes as an identifier, close to a name."""
    return _UNNAMED.sub("_", name)


def _frame(member: str, value: str, members: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of a protocol frame that one member tells from the others."""
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
