"""Normal form and digest projection of a manifest (specification, sections 6.1 and 12).

Both take a manifest of the right shape and share what they do not change with it; neither checks
anything.
"""

from collections.abc import Iterator
from typing import Any, Final

from accord.contracts.manifest.members import Copy, members, sections
from accord.contracts.manifest.references import is_reference, schema_references

normalized: Final[Copy] = members(sections(docs=True))
"""The manifest with its unknown members dropped, and the defaults of consumers filled in."""

_kept: Final[Copy] = members(sections(docs=False))


def projected(manifest: dict[str, Any]) -> dict[str, Any]:
    """What of the manifest bears on identity, authority, resources, dependencies or wire shape."""
    projection: dict[str, Any] = dict(_kept(manifest))
    errors = _declared_errors(projection)
    schemas = projection.get("schemas", {})
    reachable = {name: schemas[name] for name in _reachable(projection, errors) if name in schemas}
    for section, value in (
        ("schemas", reachable),
        ("errors", errors),
        ("uses", _uses(projection.get("uses", {}))),
        ("resources", projection.get("resources")),
    ):
        if value:
            projection[section] = value
        else:
            projection.pop(section, None)
    return projection


def _uses(uses: dict[str, Any]) -> dict[str, Any]:
    """Selectors without lists go, and so do optional aliases that are required as well."""
    required = uses.get("required", {})
    groups = {
        group: {
            alias: {name: part for name, part in use.items() if part}
            for alias, use in aliases.items()
            if group == "required" or alias not in required
        }
        for group, aliases in uses.items()
    }
    if not groups.get("optional"):
        groups.pop("optional", None)
    return groups


def _declared_errors(projection: dict[str, Any]) -> dict[str, Any]:
    """The error declarations whose type an RPC or operation names."""
    named = {
        error["type"]
        for section in ("rpc", "operations")
        for surface in projection.get(section, {}).values()
        for error in surface.get("errors", ())
    }
    return {
        name: error
        for name, error in projection.get("errors", {}).items()
        if error["type"] in named
    }


def _reachable(projection: dict[str, Any], errors: dict[str, Any]) -> Iterator[str]:
    """The schemas that the projection names directly; of errors of one type, the first counts."""
    for _, name in schema_references(projection):
        yield name
    seen = set()
    for error in errors.values():
        if error["type"] not in seen and is_reference(error.get("schema")):
            yield error["schema"]["schema"]
        seen.add(error["type"])
