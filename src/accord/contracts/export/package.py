"""The Python package of a contract: rendered deterministically, and written to a folder.

`sdk` is the only function of the contracts that touches files.
"""

import functools
import tempfile
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from accord.contracts.errors import ContractError
from accord.contracts.export.classes import render_client, render_server
from accord.contracts.export.layout import Interface, docstring, method_names, text, tuple_of
from accord.contracts.export.names import snake_name
from accord.contracts.export.types import render_types
from accord.contracts.manifest import digest, normalize
from accord.contracts.surfaces import SECTIONS
from accord.kernel import canonical
from accord.kernel.finding import Finding, pointer


def runtime_api(contracts: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The surfaces of several contracts by section and name, with contract and schemas.

    Raises:
        ContractError: Two contracts have a surface of the same name, or one is malformed.
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


def sdk(contract: Mapping[str, Any], out: Path, *, force: bool = False) -> Path:
    """Write the package below the folder `out`, completely or not at all, and return its path.

    Args:
        force: Replace the files of an earlier package.

    Raises:
        ContractError: The contract is not valid, the package exists, or `out` is not writable.
    """
    files = render_sdk(contract)
    package = out / package_name(contract)
    if package.exists() and not force:
        raise ContractError(
            "it is there already", where=str(package), mend="choose another folder, or use --force"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".accord-", dir=out) as made:
            draft = Path(made)
            (draft / package.name).mkdir()
            for path, content in files.items():
                (draft / path).write_text(content, encoding="utf-8")
            if package.exists():
                for path in files:
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
