"""The generated client and service classes."""

from collections.abc import Iterator, Mapping
from typing import Any

from accord.contracts.export.layout import (
    INDENT,
    Interface,
    docstring,
    method,
    signal_names,
    text,
    used,
)
from accord.contracts.surfaces import wildcard


def render_client(interface: Interface) -> str:
    """The module `client`."""
    methods = "".join(
        (
            *_client_calls(interface),
            *_client_operations(interface),
            *_client_events(interface),
            *_client_feeds(interface),
        )
    )
    contract = interface.contract
    needed = used(("Any", "AsyncIterator", "Run", "types"), methods)
    imports = "from collections.abc import AsyncIterator\n" if "AsyncIterator" in needed else ""
    imports += "from typing import Any\n" if "Any" in needed else ""
    imports += "\n" if imports else ""
    imports += "from . import types\n" if "types" in needed else ""
    runs = "Run, " if "Run" in needed else ""
    return (
        docstring(f"Calls {contract['id']}. Generated from the contract; do not edit.", "")
        + f"\n{imports}from .transport import {runs}Transport\n\n\nclass Client:\n"
        + docstring(contract["displayName"] or contract["id"])
        + "\n    def __init__(self, transport: Transport) -> None:\n"
        + f"{INDENT}self._wire = transport\n{methods}"
    )


def _client_calls(interface: Interface) -> Iterator[str]:
    for name, called, rpc in interface.entries("rpc"):
        reply = interface.type_of(rpc["output"])
        yield method(
            f"async def call_{called}",
            [f"payload: {interface.type_of(rpc['input'])}"],
            [reply],
            f"Call {name}.",
            _await(f"reply: {reply} = await self._wire.call", rpc) + f"{INDENT}return reply\n",
        )


def _client_operations(interface: Interface) -> Iterator[str]:
    for name, called, operation in interface.entries("operations"):
        yield method(
            f"async def start_{called}",
            [f"payload: {interface.type_of(operation['input'])}"],
            [
                "Run",
                interface.type_of(operation.get("progress")),
                interface.type_of(operation["output"]),
            ],
            f"Start {name}.",
            _await("return await self._wire.start", operation),
        )
        for signal, suffix in signal_names(operation).items():
            payload = interface.type_of(operation["signals"][signal]["input"])
            yield method(
                f"async def signal_{called}__{suffix}",
                ["run: Run[Any, Any]", f"payload: {payload}"],
                ["None"],
                f"Send the signal {signal} to a run of {name}.",
                f"{INDENT}await run.signal(\n{INDENT}    {text(signal)},\n"
                f"{INDENT}    payload,\n{INDENT})\n",
            )


def _client_events(interface: Interface) -> Iterator[str]:
    for name, called, event in interface.entries("events"):
        payload = interface.type_of(event["event"])
        yield method(
            f"async def publish_{called}",
            [f"payload: {payload}"],
            ["None"],
            f"Publish {name}.",
            _await("await self._wire.publish", event),
        )
        yield method(
            f"def subscribe_{called}",
            [],
            ["AsyncIterator", payload],
            f"Every {name} from now on.",
            f"{INDENT}return self._wire.subscribe(\n"
            f"{INDENT}    {text(wildcard(event['subject']))},\n{INDENT})\n",
        )


def _client_feeds(interface: Interface) -> Iterator[str]:
    for name, called, feed in interface.entries("feeds"):
        yield method(
            f"def feed_{called}",
            [f"payload: {interface.type_of(feed['input'])}"],
            ["AsyncIterator", interface.type_of(feed["event"])],
            f"Open the feed {name}.",
            _await("return self._wire.feed", feed),
        )


def _await(start: str, surface: Mapping[str, Any]) -> str:
    return (
        f"{INDENT}{start}(\n{INDENT}    {text(surface['subject'])},\n"
        f"{INDENT}    payload,\n{INDENT})\n"
    )


_ABSTRACT = "@abstractmethod\n    "


def render_server(interface: Interface) -> str:
    """The module `server`."""
    parts = [
        *(*_server_calls(interface), *_server_operations(interface), *_server_feeds(interface)),
        *(*_server_jobs(interface), *_server_consumers(interface)),
    ]
    methods = "".join(stub for stub, _ in parts)
    served = "".join(binding for _, binding in parts)
    identity = interface.contract["id"]
    needed = used(("Any", "AsyncIterator", "Context", "OperationContext", "types"), methods)
    imports = f"from abc import ABC{', abstractmethod' if methods else ''}\n"
    imports += "from collections.abc import AsyncIterator\n" if "AsyncIterator" in needed else ""
    imports += "from typing import Any\n" if "Any" in needed else ""
    imports += "\nfrom . import types\n" if "types" in needed else "\n"
    wire = [name for name in needed if name.endswith("Context")]
    return (
        docstring(f"Answers for {identity}. Generated from the contract; do not edit.", "")
        + f"\n{imports}from .transport import {', '.join([*wire, 'Server'])}\n"
        + "\n\nclass Service(ABC):\n"
        + docstring(f"What an implementation of {identity} does.")
        + f"{methods}\n\nasync def serve(service: Service, server: Server) -> None:\n"
        + docstring("Let a server hand over to a service.")
        + served
    )


Part = tuple[str, str]
"""An abstract method, or several, and the call that binds it."""


def _server_calls(interface: Interface) -> Iterator[Part]:
    for name, called, rpc in interface.entries("rpc"):
        stub = method(
            f"{_ABSTRACT}async def call_{called}",
            ["context: Context", f"payload: {interface.type_of(rpc['input'])}"],
            [interface.type_of(rpc["output"])],
            f"Answer {name}.",
        )
        yield stub, _binding("serve_call", rpc["subject"], f"call_{called}")


def _server_operations(interface: Interface) -> Iterator[Part]:
    for name, called, operation in interface.entries("operations"):
        progress = interface.type_of(operation.get("progress"))
        stub = method(
            f"{_ABSTRACT}async def run_{called}",
            [
                f"context: OperationContext[{progress}]",
                f"payload: {interface.type_of(operation['input'])}",
            ],
            [interface.type_of(operation["output"])],
            f"Run {name} to its end.",
        )
        signals = signal_names(operation)
        for signal, suffix in signals.items():
            payload = interface.type_of(operation["signals"][signal]["input"])
            stub += method(
                f"{_ABSTRACT}async def signal_{called}__{suffix}",
                ["context: Context", f"payload: {payload}"],
                ["None"],
                f"Take the signal {signal} of the run of {name} that the context names.",
            )
        cancel = operation.get("cancel", False)
        if cancel:
            stub += method(
                f"{_ABSTRACT}async def cancel_{called}",
                ["context: Context"],
                ["None"],
                f"Cancel the run of {name} that the context names.",
            )
        entries = "".join(
            f"            {text(signal)}: service.signal_{called}__{suffix},\n"
            for signal, suffix in signals.items()
        )
        yield (
            stub,
            f"    await server.serve_operation(\n        {text(operation['subject'])},\n"
            f"        service.run_{called},\n"
            f"        signals={{\n{entries}        }},\n".replace("{\n        }", "{}")
            + f"        cancel={f'service.cancel_{called}' if cancel else 'None'},\n    )\n",
        )


def _server_feeds(interface: Interface) -> Iterator[Part]:
    for name, called, feed in interface.entries("feeds"):
        stub = method(
            f"{_ABSTRACT}def feed_{called}",
            ["context: Context", f"payload: {interface.type_of(feed['input'])}"],
            ["AsyncIterator", interface.type_of(feed["event"])],
            f"Answer the feed {name}.",
        )
        yield stub, _binding("serve_feed", feed["subject"], f"feed_{called}")


def _server_jobs(interface: Interface) -> Iterator[Part]:
    for name, called, job in interface.entries("jobs"):
        stub = method(
            f"{_ABSTRACT}async def job_{called}",
            ["context: Context", f"payload: {interface.type_of(job['payload'])}"],
            [interface.type_of(job.get("result"))],
            f"Work on a job of {name}.",
        )
        yield stub, _binding("serve_job", name, f"job_{called}")


def _server_consumers(interface: Interface) -> Iterator[Part]:
    for name, called, _ in interface.entries("eventConsumers"):
        stub = method(
            f"{_ABSTRACT}async def consume_{called}",
            ["context: Context", "event: str", "payload: Any"],
            ["None"],
            f"Take an event of the group {name}.",
        )
        yield stub, _binding("serve_events", name, f"consume_{called}")


def _binding(serve: str, key: str, handler: str) -> str:
    return f"    await server.{serve}(\n        {text(key)},\n        service.{handler},\n    )\n"
