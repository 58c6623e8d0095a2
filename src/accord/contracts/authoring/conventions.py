"""The conventions of writing a contract: subjects by name, lists in order, capabilities by key."""

from collections.abc import Iterable, Mapping
from typing import Any

from accord.contracts.authoring.settings import SurfaceSettings, members
from accord.contracts.surface import SECTIONS

Names = Iterable[str] | None
"""Names whose order means nothing; None where the list is left out."""


def in_order(names: Names) -> list[str] | None:
    """Names sorted and without repetition, so that a set may be given too."""
    return None if names is None else sorted(set(names))


def lists(**actions: Names) -> dict[str, Any] | None:
    """The capability lists of a surface that are given; None when none is."""
    return members({action: in_order(names) for action, names in actions.items()}) or None


def error_types(kinds: Names) -> list[dict[str, str]] | None:
    """The errors that a surface declares."""
    return None if kinds is None else [{"type": kind} for kind in in_order(kinds) or ()]


def surface(section: str, name: str, settings: SurfaceSettings) -> dict[str, Any]:
    """What every surface has: version, subject and docs."""
    version = settings.get("version", "v1")
    return {
        "version": version,
        "subject": settings.get("subject", f"{section}.{version}.{name}"),
        "docs": settings.get("docs"),
    }


def with_global_capabilities(manifest: Mapping[str, Any], namespace: str) -> dict[str, Any]:
    """The manifest with its own capabilities by their global keys (specification, section 6.3).

    Only declared local names are projected; any other is a capability of someone else.
    """
    result = dict(manifest)
    declared = manifest.get("capabilities", {})
    keys = {local: namespace + local.removeprefix(namespace) for local in declared}
    if declared:
        result["capabilities"] = {keys[local]: texts for local, texts in declared.items()}
    for section in SECTIONS:
        if section in manifest:
            result[section] = {
                name: _projected(entry, keys) for name, entry in manifest[section].items()
            }
    return result


def _projected(entry: Mapping[str, Any], keys: Mapping[str, str]) -> dict[str, Any]:
    if "capabilities" not in entry:
        return dict(entry)
    gates = {
        action: in_order(keys.get(name, name) for name in names)
        for action, names in entry["capabilities"].items()
    }
    return {**entry, "capabilities": gates}
