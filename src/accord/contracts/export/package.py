"""The packages of a contract: the Python one rendered here, all written to a folder.

`sdk` is the only function of the contracts that touches files.
"""

import functools
import re
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Final, Literal

from accord.contracts.errors import ContractError
from accord.contracts.export.layout import (
    INDENT,
    WIDTH,
    Interface,
    UniqueNames,
    class_name,
    docstring,
    documentation,
    long_docstring,
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
from accord.contracts.manifest import digest, is_reference, normalize
from accord.contracts.surfaces import SECTIONS, wildcard
from accord.kernel import canonical
from accord.kernel.canonical import pointer
from accord.kernel.errors import Finding


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
    kinds = _error_names(manifest)
    files = {
        "__init__.py": _init(manifest),
        "client.py": render_client(interface, kinds),
        "contract.json": canonical.encode(manifest).decode() + "\n",
        "contract.py": _facts(manifest, named),
        "errors.py": render_errors(interface, kinds),
        "py.typed": "",
        "resources.py": render_resources(interface),
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
        + "from .resources import Resources\nfrom .server import Service, serve\n\n"
        + '__all__ = ["DIGEST", "ID", "Client", "Resources", "Service", "serve"]\n'
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


def _error_names(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The class of each declared error, by its type."""
    kinds = {error["type"] for error in manifest.get("errors", {}).values()}
    for section in ("rpc", "operations"):
        for surface in manifest.get(section, {}).values():
            kinds.update(error["type"] for error in surface.get("errors", ()))
    return UniqueNames(("Any", "DeclaredError", "Mapping")).all(
        (kind, class_name(kind)) for kind in kinds
    )


def render_errors(interface: Interface, kinds: Mapping[str, str]) -> str:
    """The module `errors`."""
    contract = interface.contract
    declared = sorted(contract.get("errors", {}).items(), reverse=True)
    entries = {entry["type"]: entry for _, entry in declared}
    classes = ""
    for kind, name in kinds.items():
        entry = entries.get(kind, {})
        members = "Mapping[str, Any]"
        if "schema" in entry:
            reference = entry["schema"]
            schema = reference["schema"] if is_reference(reference) else kind
            members = f"types.{interface.types[schema]}"
        classes += (
            f"\n\nclass {name}(DeclaredError[{members}]):\n"
            + long_docstring(documentation(entry, f"The declared error {kind}."), "    ")
            + f"\n    type = {text(kind)}\n"
        )
    needed = used(("Any", "types"), _without_docs(classes))
    imports = ""
    if "Any" in needed:
        imports += "from collections.abc import Mapping\nfrom typing import Any\n\n"
    imports += "from . import types\n" if "types" in needed else ""
    imports += "from .transport import DeclaredError\n" if classes else ""
    return (
        docstring(f"The errors of {contract['id']}. Generated from the contract; do not edit.", "")
        + ("\n" if imports else "")
        + imports
        + classes
    )


def render_resources(interface: Interface) -> str:
    """The module `resources`."""
    methods = "".join(_resources(interface))
    identity = interface.contract["id"]
    needed = used(
        ("JobQueue", "KeyValue", "Migrations", "Session", "StateMap", "StateValue"),
        _without_docs(methods) + "Session",
    )
    return (
        docstring(f"What {identity} keeps. Generated from the contract; do not edit.", "")
        + "\n"
        + ("from . import types\n" if used(("types",), _without_docs(methods)) else "")
        + _imported(needed)
        + "\n\nclass Resources:\n"
        + docstring(f"Jobs, buckets and state of {identity}, for its own sessions.")
        + "\n    def __init__(self, session: Session) -> None:\n"
        + f"{INDENT}self._session = session\n{methods}"
    )


def _imported(names: Iterable[str]) -> str:
    line = f"from .transport import {', '.join(names)}\n"
    if len(line) <= WIDTH + 1:
        return line
    return "from .transport import (\n" + "".join(f"    {name},\n" for name in names) + ")\n"


def _resources(interface: Interface) -> Iterator[str]:
    contract = interface.contract
    for name, called, job in interface.entries("jobs"):
        yield _resource(
            f"job_{called}",
            [
                "JobQueue",
                interface.type_of(job["payload"]),
                interface.type_of(job["result"]) if "result" in job else "None",
            ],
            documentation(job, f"The job queue {name}."),
            "jobs",
            name,
        )
    buckets = contract.get("resources", {}).get("kv", {})
    for name, called in _suffixes(buckets):
        bucket = buckets[name]
        yield _resource(
            f"kv_{called}",
            ["KeyValue", interface.type_of(bucket["schema"])],
            documentation(
                {"docs": {"summary": bucket["purpose"], **bucket.get("docs", {})}},
                f"The bucket {name}.",
            ),
            "kv",
            name,
        )
    stores = contract.get("state", {})
    for name, called in _suffixes(stores):
        store = stores[name]
        kind, verb = (
            ("StateMap", "state_map") if store["kind"] == "map" else ("StateValue", "state_value")
        )
        yield _resource(
            f"state_{called}",
            [kind, interface.type_of(store["schema"])],
            documentation(store, f"The state {name}."),
            verb,
            name,
            migrates=True,
        )


def _suffixes(entries: Iterable[str]) -> list[tuple[str, str]]:
    return sorted(UniqueNames().all((name, snake_name(name)) for name in entries).items())


def _resource(
    called: str, returns: list[str], doc: str, verb: str, name: str, *, migrates: bool = False
) -> str:
    return method(
        f"def {called}",
        ["migrations: Migrations | None = None"] if migrates else [],
        returns,
        doc,
        f"{INDENT}return self._session.{verb}(\n{INDENT}    {text(name)},\n"
        + (f"{INDENT}    migrations,\n" if migrates else "")
        + f"{INDENT})\n",
    )


def render_client(interface: Interface, kinds: Mapping[str, str]) -> str:
    """The module `client`; `kinds` are the classes of declared errors by type."""
    methods = "".join(
        (
            *_client_calls(interface, kinds),
            *_client_operations(interface, kinds),
            *_client_events(interface),
            *_client_feeds(interface),
        )
    )
    contract = interface.contract
    code = _without_docs(methods)
    needed = used(("Any", "AsyncIterator", "errors", "types"), code)
    imports = "from collections.abc import AsyncIterator\n" if "AsyncIterator" in needed else ""
    imports += "from typing import Any\n" if "Any" in needed else ""
    imports += "\n" if imports else ""
    modules = [name for name in needed if name in ("errors", "types")]
    imports += f"from . import {', '.join(modules)}\n" if modules else ""
    wire = [*used(("Run",), code), "Transport", *used(("declared", "outcome"), code)]
    return (
        docstring(f"Calls {contract['id']}. Generated from the contract; do not edit.", "")
        + f"\n{imports}{_imported(wire)}\n\nclass Client:\n"
        + docstring(contract["displayName"] or contract["id"])
        + "\n    def __init__(self, transport: Transport) -> None:\n"
        + f"{INDENT}self._wire = transport\n{methods}"
    )


# Docstrings have no double quotes inside, and strings in code do not begin with three.
_DOCSTRING: Final = re.compile(r'^ +"""[^"]*"""$', re.MULTILINE)


def _without_docs(methods: str) -> str:
    """Generated code without its docstrings, to see which names it uses."""
    return _DOCSTRING.sub("", methods)


def _raising(body: str, surface: Mapping[str, Any], kinds: Mapping[str, str]) -> str:
    """A body that raises the declared errors of a surface as their classes."""
    classes = _classes(surface, kinds)
    if not classes:
        return body
    return f"{INDENT}with declared(\n{classes}{INDENT}):\n" + textwrap.indent(body, "    ")


def _classes(surface: Mapping[str, Any], kinds: Mapping[str, str]) -> str:
    named = dict.fromkeys(kinds[error["type"]] for error in surface.get("errors", ()))
    return "".join(f"{INDENT}    errors.{name},\n" for name in named)


def _client_calls(interface: Interface, kinds: Mapping[str, str]) -> Iterator[str]:
    for name, called, rpc in interface.entries("rpc"):
        reply = interface.type_of(rpc["output"])
        body = _await(f"reply: {reply} = await self._wire.call", rpc)
        yield method(
            f"async def call_{called}",
            [f"payload: {interface.type_of(rpc['input'])}"],
            [reply],
            documentation(rpc, f"Call {name}."),
            _raising(body, rpc, kinds) + f"{INDENT}return reply\n",
        )


def _client_operations(interface: Interface, kinds: Mapping[str, str]) -> Iterator[str]:
    for name, called, operation in interface.entries("operations"):
        progress = interface.type_of(operation.get("progress"))
        output = interface.type_of(operation["output"])
        yield method(
            f"async def start_{called}",
            [f"payload: {interface.type_of(operation['input'])}"],
            ["Run", progress, output],
            documentation(operation, f"Start {name}."),
            _raising(
                _await(f"run: Run[{progress}, {output}] = await self._wire.start", operation),
                operation,
                kinds,
            )
            + f"{INDENT}return run\n"
            if operation.get("errors")
            else _await("return await self._wire.start", operation),
        )
        yield method(
            f"async def result_{called}",
            [f"run: Run[Any, {output}]"],
            [output],
            f"Wait for the output of a run of {name}, or raise its error.",
            f"{INDENT}return outcome(\n{INDENT}    await run.wait(),\n"
            f"{_classes(operation, kinds)}{INDENT})\n",
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
            documentation(event, f"Publish {name}."),
            _await("await self._wire.publish", event),
        )
        yield method(
            f"def subscribe_{called}",
            [],
            ["AsyncIterator", payload],
            documentation(event, f"Every {name} from now on."),
            f"{INDENT}return self._wire.subscribe(\n"
            f"{INDENT}    {text(wildcard(event['subject']))},\n{INDENT})\n",
        )


def _client_feeds(interface: Interface) -> Iterator[str]:
    for name, called, feed in interface.entries("feeds"):
        yield method(
            f"def feed_{called}",
            [f"payload: {interface.type_of(feed['input'])}"],
            ["AsyncIterator", interface.type_of(feed["event"])],
            documentation(feed, f"Open the feed {name}."),
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
    named = ("Any", "AsyncIterator", "Context", "OperationContext", "types")
    needed = used(named, _without_docs(methods))
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
            documentation(rpc, f"Answer {name}."),
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
            documentation(operation, f"Run {name} to its end."),
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
            documentation(feed, f"Answer the feed {name}."),
        )
        yield stub, _binding("serve_feed", feed["subject"], f"feed_{called}")


def _server_jobs(interface: Interface) -> Iterator[Part]:
    for name, called, job in interface.entries("jobs"):
        stub = method(
            f"{_ABSTRACT}async def job_{called}",
            ["context: Context", f"payload: {interface.type_of(job['payload'])}"],
            [interface.type_of(job.get("result"))],
            documentation(job, f"Work on a job of {name}."),
        )
        yield stub, _binding("serve_job", name, f"job_{called}")


def _server_consumers(interface: Interface) -> Iterator[Part]:
    for name, called, group in interface.entries("eventConsumers"):
        stub = method(
            f"{_ABSTRACT}async def consume_{called}",
            ["context: Context", "event: str", "payload: Any"],
            ["None"],
            documentation(group, f"Take an event of the group {name}."),
        )
        yield stub, _binding("serve_events", name, f"consume_{called}")


def _binding(serve: str, key: str, handler: str) -> str:
    return f"    await server.{serve}(\n        {text(key)},\n        service.{handler},\n    )\n"
