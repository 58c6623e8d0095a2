"""The generated service stub: an abstract method for everything that a service answers."""

from collections.abc import Iterator

from accord.contracts.sdk_export.layout import docstring, text, used
from accord.contracts.sdk_export.methods import Interface, method, signal_names

_ABSTRACT = "@abstractmethod\n    "


def render_server(interface: Interface) -> str:
    """The module `server`."""
    parts = [
        *(*_calls(interface), *_operations(interface), *_feeds(interface)),
        *(*_jobs(interface), *_consumers(interface)),
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


def _calls(interface: Interface) -> Iterator[Part]:
    for name, called, rpc in interface.entries("rpc"):
        stub = method(
            f"{_ABSTRACT}async def call_{called}",
            ["context: Context", f"payload: {interface.type_of(rpc['input'])}"],
            [interface.type_of(rpc["output"])],
            f"Answer {name}.",
        )
        yield stub, _binding("serve_call", rpc["subject"], f"call_{called}")


def _operations(interface: Interface) -> Iterator[Part]:
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


def _feeds(interface: Interface) -> Iterator[Part]:
    for name, called, feed in interface.entries("feeds"):
        stub = method(
            f"{_ABSTRACT}def feed_{called}",
            ["context: Context", f"payload: {interface.type_of(feed['input'])}"],
            ["AsyncIterator", interface.type_of(feed["event"])],
            f"Answer the feed {name}.",
        )
        yield stub, _binding("serve_feed", feed["subject"], f"feed_{called}")


def _jobs(interface: Interface) -> Iterator[Part]:
    for name, called, job in interface.entries("jobs"):
        stub = method(
            f"{_ABSTRACT}async def job_{called}",
            ["context: Context", f"payload: {interface.type_of(job['payload'])}"],
            [interface.type_of(job.get("result"))],
            f"Work on a job of {name}.",
        )
        yield stub, _binding("serve_job", name, f"job_{called}")


def _consumers(interface: Interface) -> Iterator[Part]:
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
