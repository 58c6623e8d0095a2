"""Renders the files of a package from a contract: a contract in, texts out, the same every time."""

import functools
from collections.abc import Mapping
from importlib import resources
from typing import Any

from accord.contracts.manifest import digest, normalize
from accord.contracts.naming import snake_name
from accord.contracts.sdk_export.client import render_client
from accord.contracts.sdk_export.layout import docstring, text, tuple_of
from accord.contracts.sdk_export.methods import Interface, method_names
from accord.contracts.sdk_export.server import render_server
from accord.contracts.sdk_export.types import render_types
from accord.kernel import canonical


def package_name(contract: Mapping[str, Any]) -> str:
    """What the package of a contract is called, such as `graph_v1`."""
    name, _, version = contract["id"].rpartition("@")
    package = f"{snake_name(name)}_{version}"
    return package if package.isidentifier() else f"sdk_{package}"


def render_sdk(contract: Mapping[str, Any]) -> dict[str, str]:
    """The files of the package: their paths, with the package's folder, and their texts.

    Raises:
        ContractError: The contract is not valid; it carries the findings.
    """
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
    return (resources.files("accord.contracts.sdk_export") / "transport.py").read_text("utf-8")


def _inline_errors(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Schemas that stand where errors are declared, by the type of the error; the first counts."""
    return {
        error["type"]: error["schema"]
        for _, error in sorted(manifest.get("errors", {}).items(), reverse=True)
        if "schema" in error and not _is_reference(error["schema"])
    }


def _is_reference(schema: Any) -> bool:
    return isinstance(schema, Mapping) and isinstance(schema.get("schema"), str)


def _init(manifest: Mapping[str, Any]) -> str:
    return (
        docstring(f"{manifest['displayName']} ({manifest['id']}). Generated; do not edit.", "")
        + "\nfrom .client import Client\nfrom .contract import DIGEST, ID\n"
        + 'from .server import Service, serve\n\n__all__ = ["DIGEST", "ID", "Client", '
        + '"Service", "serve"]\n'
    )


def _facts(manifest: Mapping[str, Any], named: str) -> str:
    """The module of what does not need a type: identity, aliases, declared errors and gates."""
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
