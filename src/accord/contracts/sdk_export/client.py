"""The generated client: a method for everything that callers do."""

from collections.abc import Iterator, Mapping
from typing import Any

from accord.contracts.sdk_export.layout import docstring, text, used
from accord.contracts.sdk_export.methods import INDENT, Interface, method, signal_names
from accord.contracts.subjects import wildcard


def render_client(interface: Interface) -> str:
    """The module `client`."""
    methods = "".join(
        (*_calls(interface), *_operations(interface), *_events(interface), *_feeds(interface))
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


def _calls(interface: Interface) -> Iterator[str]:
    for name, called, rpc in interface.entries("rpc"):
        reply = interface.type_of(rpc["output"])
        yield method(
            f"async def call_{called}",
            [f"payload: {interface.type_of(rpc['input'])}"],
            [reply],
            f"Call {name}.",
            _await(f"reply: {reply} = await self._wire.call", rpc) + f"{INDENT}return reply\n",
        )


def _operations(interface: Interface) -> Iterator[str]:
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


def _events(interface: Interface) -> Iterator[str]:
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


def _feeds(interface: Interface) -> Iterator[str]:
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
