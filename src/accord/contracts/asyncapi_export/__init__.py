"""AsyncAPI 3.0 of a contract or a catalog: documentation, derived and never the model itself.

The document speaks as the owner: it receives calls, operations and feed requests, and sends events.
What others cannot reach (jobs, state, resources) is left out, and what AsyncAPI has no word for
(capabilities, declared errors) stands in members that begin with `x-`.
"""

import json
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

from accord.contracts.asyncapi_export.document import Document
from accord.contracts.errors import ContractError
from accord.contracts.manifest import digest, normalize
from accord.kernel.schema import compile_schema

__all__ = ["asyncapi"]


def asyncapi(document: Any, manifests: Iterable[Any] = ()) -> dict[str, Any]:
    """The AsyncAPI document of a contract, or of a catalog.

    Args:
        document: A contract's manifest, or a catalog (`trellis.catalog.v1`).
        manifests: For a catalog, the contracts that it lists. A listed contract that is not given
            is named in the document, without its surfaces.

    Raises:
        ContractError: A contract is not valid, or the catalog has not the shape of one.
    """
    if isinstance(document, dict) and document.get("format") == "trellis.catalog.v1":
        return _catalog(document, manifests)
    named = digest(document)
    contract = normalize(document)
    written = Document()
    written.add(contract)
    return written.whole(
        {
            "title": contract["displayName"] or contract["id"],
            "version": f"{contract['id'].rpartition('@v')[2]}.0.0",
            "description": contract.get("docs", {}).get("markdown") or contract["description"],
            "x-contracts": [{"id": contract["id"], "digest": named}],
        }
    )


def _catalog(catalog: Mapping[str, Any], manifests: Iterable[Any]) -> dict[str, Any]:
    shape = json.loads(
        (resources.files("accord.contracts") / "data" / "trellis.catalog.v1.json").read_bytes()
    )
    findings = compile_schema(shape).findings(catalog)
    if findings:
        raise ContractError(f"not a catalog: {findings[0]}", findings=findings)
    given = {digest(manifest): manifest for manifest in manifests}
    entries = sorted({(entry["id"], entry["digest"]) for entry in catalog["contracts"]})
    written = Document()
    for identity, named in entries:
        if named in given:
            written.add(normalize(given[named]), f"{identity}.{named[:12]}.")
    return written.whole(
        {
            "title": "Catalog",
            "version": "1.0.0",
            "description": f"The surfaces of {len(entries)} active contracts.",
            "x-contracts": [
                {"id": identity, "digest": named, "documented": named in given}
                for identity, named in entries
            ],
        }
    )
