"""The packages of a contract: the Python one rendered here, all written to a folder.

`sdk` is the only function of the contracts that touches files.
"""

import functools
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal

from accord.contracts.errors import ContractError
from accord.contracts.export.layout import (
    INDENT,
    Interface,
    docstring,
    method,
    method_names,
    signal_names,
    snake_name,
    text,
    tuple_of,
    used,
)
from accord.contracts.export.types import render_types
from accord.contracts.export.typescript import render_typescript
from accord.contracts.manifest import digest, normalize
from accord.contracts.manifest.projection import is_reference
from accord.contracts.surfaces import SECTIONS, wildcard
from accord.kernel import canonical
from accord.kernel.finding import Finding, pointer


def runtime_api(contracts: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The surfaces of several contracts by section and name, with contract and schemas.

    Raises ContractError if two contracts have a surface of the same name, or one is malformed.
    """
    merged: dict[str, dict[str, Any]] = {section: {} for section in SECTIONS}
    findings: list[Finding] = []
    for contract in map(normalize, contracts):
        schemas = contract.get("schemas", {})
        for section, surfaces in merged.items():
            for name, surface in contract.get(section, {}).items():
                owner = surfaces.get(name, {}).get("contract")
                if owner is not None:
                    sentence = f"both {owner} and {contract['id']} have {name!r}"
                    findings.append(
                        Finding("api.duplicate-surface", pointer(section, name), sentence)
                    )
                else:
                    surfaces[name] = {**surface, "contract": contract["id"], "schemas": schemas}
    if findings:
        raise ContractError(
            f"the contracts do not merge: {findings[0].message}",
            mend="use them through separate clients",
            findings=findings,
        )
    return merged


def package_name(contract: Mapping[str, Any]) -> str:
    """The package name of a contract, such as `graph_v1`."""
    name, _, version = contract["id"].rpartition("@")
    package = f"{snake_name(name)}_{version}"
    return package if package.isidentifier() else f"sdk_{package}"


def render_sdk(contract: Mapping[str, Any]) -> dict[str, str]:
    """The files of the package, by path from its folder; raises ContractError with findings."""
    named = digest(contract)
    manifest = normalize(contract)
    schemas = {**_inline_errors(manifest), **manifest.get("schemas", {})}
    types, names = render_types(f"The payloads of {manifest['id']}.", schemas)
    interface = Interface(manifest, names, method_names(manifest))
    files = {
        "__init__.py": _init(manifest),
        "client.py": render_client(interface),
        "contract.json": canonical.encode(manifest).decode() + "\n",
        "contract.py": _facts(manifest, named),
        "py.typed": "",
        "server.py": render_server(interface),
        "transport.py": _transport(),
        "types.py": types,
    }
    return {f"{package_name(manifest)}/{path}": content for path, content in files.items()}


@functools.cache
def _transport() -> str:
    return (resources.files("accord.contracts.export") / "transport.py").read_text("utf-8")


def _inline_errors(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Inline schemas of errors, by error type; the first one counts."""
    return {
        error["type"]: error["schema"]
        for _, error in sorted(manifest.get("errors", {}).items(), reverse=True)
        if "schema" in error and not is_reference(error["schema"])
    }


def _init(manifest: Mapping[str, Any]) -> str:
    return (
        docstring(f"{manifest['displayName']} ({manifest['id']}). Generated; do not edit.", "")
        + "\nfrom .client import Client\nfrom .contract import DIGEST, ID\n"
        + 'from .server import Service, serve\n\n__all__ = ["DIGEST", "ID", "Client", '
        + '"Service", "serve"]\n'
    )


def _facts(manifest: Mapping[str, Any], named: str) -> str:
    """The module with identity, aliases, declared errors and capability gates."""
    resources_ = manifest.get("resources", {})
    aliases = {
        "KV": resources_.get("kv", {}),
        "STORES": resources_.get("store", {}),
        "STATE": manifest.get("state", {}),
    }
    lists = "".join(
        tuple_of(f"{name}: Final = ", [text(entry) for entry in sorted(entries)])
        for name, entries in aliases.items()
    )
    return (
        docstring(f"What {manifest['id']} is. Generated from the contract; do not edit.", "")
        + "\nimport json\nfrom importlib import resources\nfrom typing import Any, Final\n\n"
        + f"ID: Final = {text(manifest['id'])}\nDIGEST: Final = {text(named)}\n{lists}\n\n"
        + "def manifest() -> dict[str, Any]:\n"
        + docstring("The contract: schemas, capabilities and errors of every surface.")
        + "    files = resources.files(__package__)\n"
        + '    read: dict[str, Any] = json.loads((files / "contract.json").read_bytes())\n'
        + "    return read\n"
    )


Language = Literal["python", "typescript"]


def sdk(
    contract: Mapping[str, Any], out: Path, *, force: bool = False, language: Language = "python"
) -> Path:
    """Write the package below the folder `out`, completely or not at all, and return its path.

    `force` replaces an earlier package. Raises ContractError if the contract is not valid, the
    package exists, or `out` is not writable.
    """
    files = render_sdk(contract) if language == "python" else render_typescript(contract)
    package = out / next(iter(files)).partition("/")[0]
    if package.exists() and not force:
        raise ContractError(
            "it is there already", where=str(package), mend="choose another folder, or use --force"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".accord-", dir=out) as made:
            draft = Path(made)
            for path, content in files.items():
                (draft / path).parent.mkdir(parents=True, exist_ok=True)
                (draft / path).write_text(content, encoding="utf-8")
            if package.exists():
                for path in files:
                    (out / path).parent.mkdir(parents=True, exist_ok=True)
                    (draft / path).replace(out / path)
            else:
                (draft / package.name).rename(package)
    except OSError as error:
        raise ContractError(
            f"the package cannot be written here ({error.strerror})",
            where=str(package),
            mend="choose a folder that can be written",
        ) from error
    return package


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
