"""The TypeScript package of a contract, for Node and browsers, rendered deterministically.

It stands on the npm package `accord-fabric`. Docs of the contract become comments.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from accord.contracts.export.layout import (
    Interface,
    UniqueNames,
    class_name,
    method_names,
    signal_names,
)
from accord.contracts.export.types import additional, object_members
from accord.contracts.manifest import digest, is_reference, normalize, text_digest
from accord.contracts.schemas import conjuncts
from accord.kernel import canonical

FABRIC: Final = "accord-fabric"
FABRIC_VERSION: Final = "^0.1.0"

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_SCALARS: Final = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}
_OBJECT: Final = ("properties", "required", "additionalProperties", "patternProperties")
# Names that the language or the generated code has.
_TAKEN: Final = (
    *("Array", "Boolean", "Date", "Error", "Function", "Infinity", "Map", "NaN", "Number"),
    *(
        "Object",
        "Promise",
        "Proxy",
        "Readonly",
        "ReadonlyArray",
        "Record",
        "Reflect",
        "RegExp",
        "RemoteError",
    ),
    *("Set", "String", "Symbol", "WeakMap", "WeakSet", "JSON", "Math", "BigInt", "Intl", "Atomics"),
)
_LONGEST_DOC: Final = 4000
_COMPILER: Final = {
    "compilerOptions": {
        "strict": True,
        "noUncheckedIndexedAccess": True,
        "exactOptionalPropertyTypes": True,
        "target": "ES2023",
        "lib": ["ES2023", "ESNext.Disposable", "DOM", "DOM.AsyncIterable"],
        "module": "NodeNext",
        "moduleResolution": "NodeNext",
        "types": [],
        "declaration": True,
        "rootDir": "src",
        "outDir": "dist",
        "skipLibCheck": True,
    },
    "include": ["src"],
}


def typescript_name(contract: Mapping[str, Any]) -> str:
    """The npm name of a contract's package, such as `graph-v1`."""
    name, _, version = contract["id"].rpartition("@")
    words = re.findall(r"[a-z0-9]+", f"{name}-{version}".lower())
    return "-".join(words)


def render_typescript(contract: Mapping[str, Any]) -> dict[str, str]:
    """The files of the package, by path from its folder; raises ContractError with findings."""
    named = digest(contract)
    manifest = normalize(contract)
    declared = _error_schemas(manifest)
    schemas = {**declared, **manifest.get("schemas", {})}
    names = UniqueNames(_TAKEN).all((name, class_name(name)) for name in schemas)
    interface = Interface(manifest, names, method_names(manifest))
    name = typescript_name(manifest)
    files = {
        "package.json": _package(manifest, name),
        "tsconfig.json": json.dumps(_COMPILER, indent=2) + "\n",
        "src/client.ts": _client(interface),
        "src/contract.ts": _contract(manifest, named),
        "src/errors.ts": _errors(interface),
        "src/index.ts": _index(interface),
        "src/state.ts": _state(interface),
        "src/types.ts": _types(interface, schemas),
    }
    return {f"{name}/{path}": content for path, content in files.items()}


def _error_schemas(manifest: Mapping[str, Any]) -> dict[str, Any]:
    return {
        error["type"]: error["schema"]
        for _, error in sorted(manifest.get("errors", {}).items(), reverse=True)
        if "schema" in error and not is_reference(error["schema"])
    }


def _package(manifest: Mapping[str, Any], name: str) -> str:
    package = {
        "name": name,
        "version": "0.0.0",
        "description": f"{manifest['displayName']} ({manifest['id']}). Generated; do not edit.",
        "private": True,
        "type": "module",
        "sideEffects": False,
        "exports": {".": {"types": "./dist/index.d.ts", "default": "./dist/index.js"}},
        "scripts": {"build": "tsc --project tsconfig.json"},
        "dependencies": {FABRIC: FABRIC_VERSION},
    }
    return json.dumps(package, indent=2, ensure_ascii=True) + "\n"


def _head(interface: Interface, what: str) -> str:
    return _comment(f"{what} of {interface.contract['id']}. Generated; do not edit.")


def _index(interface: Interface) -> str:
    lines = [_head(interface, "The package"), ""]
    lines += ['export { Client } from "./client.js";', 'export { contract } from "./contract.js";']
    if interface.contract.get("errors"):
        lines.append('export * from "./errors.js";')
    if interface.contract.get("state"):
        lines.append('export * from "./state.js";')
    lines.append('export type * as types from "./types.js";')
    return "\n".join(lines) + "\n"


def _contract(manifest: Mapping[str, Any], named: str) -> str:
    identity, text = manifest["id"], canonical.encode(manifest).decode()
    return (
        _comment(f"What {identity} is. Generated; do not edit.")
        + f'\n\nimport type {{ Contract, Manifest }} from "{FABRIC}";\n'
        + 'import { errors } from "./errors.js";\n\n'
        + _comment("The contract, with its digests and the classes of its errors.")
        + f"\nexport const contract: Contract = {{\n  id: {_text(identity)},\n"
        + f"  digest: {_text(named)},\n  textDigest: {_text(text_digest(manifest))},\n"
        + f"  manifest: JSON.parse({_text(text)}) as Manifest,\n  errors,\n}};\n"
    )


def _errors(interface: Interface) -> str:
    declared: dict[str, Mapping[str, Any]] = {}
    for _, error in sorted(interface.contract.get("errors", {}).items()):
        declared.setdefault(error["type"], error)
    # The package has a Client of its own beside its errors.
    names = UniqueNames((*_TAKEN, "Client")).all((kind, class_name(kind)) for kind in declared)
    lines = [_head(interface, "The errors")]
    if declared:
        lines += ["", f'import {{ RemoteError }} from "{FABRIC}";']
        if any("schema" in error for error in declared.values()):
            lines.append('import type * as types from "./types.js";')
    for kind, error in declared.items():
        members = ""
        if "schema" in error:
            reference = error["schema"]["schema"] if is_reference(error["schema"]) else kind
            members = f"<types.{interface.types[reference]}>"
        lines += [
            "",
            *_documented(error, f"The declared error {kind}."),
            f"export class {names[kind]} extends RemoteError{members} {{",
            f"  static override readonly type = {_text(kind)};",
            "}",
        ]
    entries = [f"  {_key(kind)}: {names[kind]}," for kind in declared]
    lines += ["", _comment("The classes by type."), "export const errors = {", *entries, "};"]
    return "\n".join(lines) + "\n"


def _state(interface: Interface) -> str:
    stores = interface.contract.get("state", {})
    lines = [_head(interface, "The state")]
    if not stores:
        return lines[0] + "\n\nexport {};\n"
    kinds = sorted({_state_class(store) for store in stores.values()})
    lines += [
        "",
        f'import type {{ Migrations, Session, {", ".join(kinds)} }} from "{FABRIC}";',
        'import type * as types from "./types.js";',
    ]
    names = UniqueNames().all((name, class_name("state", name)) for name in stores)
    for name, store in sorted(stores.items()):
        kind = f"{_state_class(store)}<{interface.type_of(store['schema'])}>"
        function = names[name][0].lower() + names[name][1:]
        verb = "stateMap" if store["kind"] == "map" else "stateValue"
        lines += [
            "",
            *_documented(store, f"The state {name} of a session of this contract."),
            f"export function {function}(session: Session, migrations?: Migrations): {kind} {{",
            f"  return session.{verb}({_text(name)}, migrations);",
            "}",
        ]
    return "\n".join(lines) + "\n"


def _state_class(store: Mapping[str, Any]) -> str:
    return "StateMap" if store["kind"] == "map" else "StateValue"


def _client(interface: Interface) -> str:
    contract = interface.contract
    methods = [line for part in (_calls, _operations, _events, _feeds) for line in part(interface)]
    body = "\n".join(methods)
    fabric = [
        f"type {name}" if name != "Client" else "type Client as Wire"
        for name, mark in (
            ("CallOptions", "CallOptions"),
            ("Client", ""),
            ("Received", "Received<"),
            ("RequestOptions", "RequestOptions"),
            ("Run", "Run<"),
            ("Session", ""),
        )
        if mark in body
    ]
    imports = [f"import {{ {', '.join(each.removeprefix('type ') for each in fabric)} }}"]
    lines = [
        _head(interface, "The client"),
        "",
        imports[0].replace("import {", "import type {") + f' from "{FABRIC}";',
        'import { contract } from "./contract.js";',
    ]
    if "types." in body:
        lines.append('import type * as types from "./types.js";')
    lines += [
        "",
        *_documented(contract, contract["description"] or contract["displayName"]),
        "export class Client {",
        "  /** The client without types. */",
        "  readonly wire: Wire;",
        "",
        "  constructor(session: Session) {",
        "    this.wire = session.client(contract);",
        "  }",
        *methods,
        "}",
    ]
    return "\n".join(lines) + "\n"


def _calls(interface: Interface) -> Iterator[str]:
    for name, called, rpc in interface.entries("rpc"):
        failing = [each["type"] for each in rpc.get("errors", ())]
        throws = f" Throws {', '.join(failing)}." if failing else ""
        reply = _of(interface, rpc["output"])
        yield from _method(
            rpc,
            f"Call {name}.{throws}",
            f"call{_pascal(called)}",
            [f"payload: {_of(interface, rpc['input'])}", "options?: RequestOptions"],
            f"Promise<{reply}>",
            f"this.wire.call({_text(name)}, payload, options) as Promise<{reply}>",
        )


def _operations(interface: Interface) -> Iterator[str]:
    for name, called, operation in interface.entries("operations"):
        progress = _of(interface, operation.get("progress"))
        run = f"Run<{progress}, {_of(interface, operation['output'])}>"
        uploads = "transfer" in operation
        more = " It expects a file: see `Run.upload`." if uploads else ""
        # What expects a file takes no idempotency key.
        options = "CallOptions" if uploads else "RequestOptions"
        yield from _method(
            operation,
            f"Start {name}.{more}",
            f"start{_pascal(called)}",
            [f"payload: {_of(interface, operation['input'])}", f"options?: {options}"],
            f"Promise<{run}>",
            f"this.wire.start({_text(name)}, payload, options) as Promise<{run}>",
        )
        for signal, suffix in signal_names(operation).items():
            payload = _of(interface, operation["signals"][signal]["input"])
            yield from _method(
                operation["signals"][signal],
                f"Send the signal {signal} to a run of {name}; returns its sequence.",
                f"signal{_pascal(called)}_{suffix}",
                [f"run: {run}", f"payload: {payload}"],
                "Promise<number>",
                f"run.signal({_text(signal)}, payload)",
            )


def _events(interface: Interface) -> Iterator[str]:
    for name, called, event in interface.entries("events"):
        payload = _of(interface, event["event"])
        stream = f"Promise<AsyncGenerator<Received<{payload}>, void, void>>"
        yield from _method(
            event,
            f"Publish {name} durably; returns its id.",
            f"publish{_pascal(called)}",
            [f"payload: {payload}", "options?: CallOptions"],
            "Promise<string>",
            f"this.wire.publish({_text(name)}, payload, options)",
        )
        yield from _method(
            event,
            f"Hear every {name} from now on.",
            f"subscribe{_pascal(called)}",
            ["where?: Readonly<Record<string, string | number>>"],
            stream,
            f"this.wire.listen({_text(name)}, where) as {stream}",
        )


def _feeds(interface: Interface) -> Iterator[str]:
    for name, called, feed in interface.entries("feeds"):
        stream = f"AsyncGenerator<{_of(interface, feed['event'])}, void, void>"
        yield from _method(
            feed,
            f"Open the feed {name}.",
            f"feed{_pascal(called)}",
            [f"payload: {_of(interface, feed['input'])}", "options?: CallOptions"],
            stream,
            f"this.wire.feed({_text(name)}, payload, options) as {stream}",
        )


def _method(
    entry: Mapping[str, Any],
    doc: str,
    name: str,
    parameters: Iterable[str],
    returns: str,
    answer: str,
) -> Iterator[str]:
    yield ""
    yield from (f"  {line}" for line in _documented(entry, doc))
    yield f"  {name}("
    yield from (f"    {parameter}," for parameter in parameters)
    yield f"  ): {returns} {{"
    yield f"    return {answer};"
    yield "  }"


def _of(interface: Interface, reference: Mapping[str, str] | None) -> str:
    return "undefined" if reference is None else interface.type_of(reference)


def _pascal(suffix: str) -> str:
    return "".join(word[:1].upper() + word[1:] for word in suffix.split("_"))


def _types(interface: Interface, schemas: Mapping[str, Any]) -> str:
    lines = [_head(interface, "The payloads")]
    for name in sorted(schemas):
        schema, kind = schemas[name], interface.types[name]
        said = schema.get("description") if isinstance(schema, Mapping) else None
        lines += ["", _comment(said if isinstance(said, str) else f"The schema {name}.")]
        written = _type(schema, "")
        if object_members(schema) is not None:
            lines.append(f"export interface {kind} {written}")
        else:
            lines.append(f"export type {kind} = {written};")
    return "\n".join(lines if schemas else [*lines, "", "export {};"]) + "\n"


def _type(schema: Any, indent: str) -> str:
    """A type expression; lines after the first one begin with `indent`."""
    members = object_members(schema)
    if members is not None:
        inner = indent + "  "
        lines = []
        for key, part, required in members:
            said = part.get("description") if isinstance(part, Mapping) else None
            if isinstance(said, str):
                lines += [inner + line for line in _comment(said).split("\n")]
            mark = "" if required else "?"
            lines.append(f"{inner}readonly {_key(key)}{mark}: {_type(part, inner)};")
        return "\n".join(["{", *lines, indent + "}"])
    parts = list(dict.fromkeys(_union(schema, indent)))
    if "unknown" in parts:
        return "unknown"
    return " | ".join(part for part in parts if part != "never") or "never"


def _union(schema: Any, indent: str) -> Iterator[str]:
    if not isinstance(schema, Mapping):
        yield "never" if schema is False else "unknown"
    elif "const" in schema or "enum" in schema:
        yield from map(_literal, schema.get("enum", [schema.get("const")]))
    elif "type" in schema:
        kinds = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        for kind in kinds:
            yield _of_kind(kind, {**schema, "type": kind}, indent)
    elif "anyOf" in schema or "oneOf" in schema:
        for branch in schema.get("anyOf", schema.get("oneOf")):
            yield _type(branch, indent)
    elif "allOf" in schema:
        told = [_type(branch, indent) for branch in conjuncts(schema) if branch is not schema]
        yield next((each for each in told if each != "unknown"), "unknown")
    elif any(keyword in schema for keyword in _OBJECT):
        yield _of_kind("object", schema, indent)
    else:
        yield _of_kind("array", schema, indent) if "items" in schema else "unknown"


def _of_kind(kind: str, schema: Mapping[str, Any], indent: str) -> str:
    if kind == "object":
        if object_members(schema) is not None:
            return _type(schema, indent)
        return f"Readonly<Record<string, {_type(additional(schema), indent)}>>"
    if kind == "array":
        items = schema.get("items", True)
        if isinstance(items, list):
            items = {"anyOf": [*items, schema.get("additionalItems", True)]}
        return f"ReadonlyArray<{_type(items, indent)}>"
    return _SCALARS[kind]


def _literal(value: Any) -> str:
    if isinstance(value, Mapping | list):
        return "unknown"
    return _text(value) if isinstance(value, str) else json.dumps(value)


def _text(value: str) -> str:
    return json.dumps(value, ensure_ascii=True)


def _key(name: str) -> str:
    return name if _PLAIN.fullmatch(name) and name != "__proto__" else f"[{_text(name)}]"


def _documented(entry: Mapping[str, Any], doc: str) -> list[str]:
    """A comment of what is said here, and of what the contract's author wrote."""
    docs = entry.get("docs", {})
    texts = [doc, *(docs[each] for each in ("summary", "markdown") if docs.get(each))]
    return _comment("\n\n".join(dict.fromkeys(texts))).split("\n")


def _comment(text: str) -> str:
    plain = "".join(
        letter if letter.isprintable() or letter == "\n" else " "
        for letter in text[:_LONGEST_DOC].replace("*/", "* /").replace("\r\n", "\n")
    ).strip()
    lines = [line.rstrip() for line in plain.split("\n")]
    if len(lines) == 1:
        return f"/** {lines[0]} */"
    return "\n".join(["/**", *(f" * {line}".rstrip() for line in lines), " */"])
