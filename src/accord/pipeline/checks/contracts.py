"""Contracts: that a presented manifest is what its digest names, and that payloads keep theirs.

Owns the way from a recorded call to the schema of its surface. Schemas are compiled once in a
process, however many calls they judge.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final

from accord.contracts import ContractError, digest
from accord.contracts.manifest.references import schema_references
from accord.kernel import canonical
from accord.kernel.schema import Schema, SchemaError, compile_schema
from accord.pipeline.checks.verdict import RefusedError

Place = tuple[str, ...]
"""Of a payload in a manifest, such as `("rpc", "Account.Get", "input")`."""

_SIGNAL: Final = "signal:"


class Manifests:
    """The manifests that were presented, by digest.

    It holds canonical JSON and nothing else, so that it travels to workers cheaply.
    """

    __slots__ = ("_texts",)

    def __init__(self, texts: Mapping[str, bytes]) -> None:
        self._texts = dict(texts)

    def __len__(self) -> int:
        return len(self._texts)

    def payloads(self, name: str) -> "tuple[str, dict[Place, Schema]] | None":
        """The id of a contract and the schemas of its payloads; None where it is unknown."""
        text = self._texts.get(name)
        return None if text is None else _payloads(text)


def place_of(kind: str, surface: str, part: str) -> Place:
    """Where a manifest has the schema of a recorded payload."""
    if part.startswith(_SIGNAL):
        return (kind, surface, "signals", part.removeprefix(_SIGNAL), "input")
    return (kind, surface, part)


def check_history(value: Mapping[str, Any], _manifests: Manifests) -> None:
    """A manifest that is carried along is valid, of its contract, and has its digest.

    Raises:
        RefusedError: It is not.
    """
    manifest = value["manifest"]
    if manifest is None:
        return
    try:
        found = _digest(canonical.encode(manifest))
    except (canonical.CanonicalError, ContractError) as error:
        raise RefusedError("contract.manifest", error) from None
    if found != value["digest"]:
        raise RefusedError("contract.digest", f"the manifest's own digest is {found}")
    if manifest["id"] != value["contract_id"]:
        raise RefusedError("contract.manifest", f"the manifest is that of {manifest['id']}")


def check_call(value: Mapping[str, Any], manifests: Manifests) -> None:
    """A call names a contract and a surface of it, and its payload keeps the schema.

    Raises:
        RefusedError: It does not.
    """
    known = manifests.payloads(value["digest"])
    if known is None:
        raise RefusedError("contract.unknown", f"nobody presented the contract {value['digest']}")
    contract_id, schemas = known
    if contract_id != value["contract_id"]:
        raise RefusedError(
            "contract.unknown",
            f"the contract {value['digest']} is that of {contract_id}",
        )
    where = f"{value['kind']} {value['surface'][:80]} {value['part'][:80]}"
    schema = schemas.get(place_of(value["kind"], value["surface"], value["part"]))
    if schema is None:
        raise RefusedError("contract.surface", f"{contract_id} has no {where}")
    # What policy keeps out is not there to be judged.
    if "payload" in value and not schema.is_valid(value["payload"]):
        first = schema.findings(value["payload"])[0]
        raise RefusedError("contract.payload", f"the payload of {where} breaks its schema: {first}")


@lru_cache(maxsize=1024)
def _digest(text: bytes) -> str:
    return digest(canonical.decode(text))


@lru_cache(maxsize=1024)
def _payloads(text: bytes) -> tuple[str, dict[Place, Schema]]:
    manifest = canonical.decode(text)
    declared = manifest.get("schemas", {})
    schemas: dict[Place, Schema] = {}
    for place, name in schema_references(manifest):
        try:
            schemas[place] = compile_schema(declared[name])
        except (KeyError, SchemaError):
            # A valid manifest has all its schemas; only such are given to `Manifests`.
            continue
    return manifest["id"], schemas
