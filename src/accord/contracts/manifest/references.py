"""Where a manifest refers to its schemas: one walk for the projection and for the rule."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from accord.contracts.manifest.pointers import Path

_REFERRING: Final = {
    "rpc": ("input", "output"),
    "operations": ("input", "progress", "output"),
    "events": ("event",),
    "feeds": ("input", "event"),
    "jobs": ("payload", "result"),
    "state": ("schema",),
}


def is_reference(value: Any) -> bool:
    """Whether what stands for an error's schema is a reference, and not the schema itself."""
    return isinstance(value, dict) and isinstance(value.get("schema"), str)


def schema_references(manifest: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    """Every reference but those of exports and errors: its place, and the schema's name."""
    for path, reference in _references(manifest):
        if "schema" in reference:
            yield path, reference["schema"]


def _references(manifest: Mapping[str, Any]) -> Iterator[tuple[Path, dict[str, Any]]]:
    for section, parts in _REFERRING.items():
        for name, item in manifest.get(section, {}).items():
            for part in parts:
                if part in item:
                    yield (section, name, part), item[part]
    for name, operation in manifest.get("operations", {}).items():
        for signal, value in operation.get("signals", {}).items():
            if "input" in value:
                yield ("operations", name, "signals", signal, "input"), value["input"]
    for name, store in manifest.get("state", {}).items():
        for version, reference in store.get("acceptedVersions", {}).items():
            yield ("state", name, "acceptedVersions", version), reference
    for name, bucket in manifest.get("resources", {}).get("kv", {}).items():
        if "schema" in bucket:
            yield ("resources", "kv", name, "schema"), bucket["schema"]
