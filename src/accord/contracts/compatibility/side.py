"""One side of a comparison: what a contract means, in flat maps that can be held side by side.

Lists that are sets are sets here, what is left out has its meaning, and schemas are found by the
place that uses them, so that a schema under another name makes no difference.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from accord.contracts.compatibility.settings import Path, Value, settings
from accord.contracts.errors import ContractError
from accord.contracts.manifest import validate
from accord.contracts.manifest.projecting import projected
from accord.contracts.manifest.references import is_reference, schema_references
from accord.contracts.surface import SECTIONS, surfaces
from accord.kernel import canonical

SURFACES: Final = (*SECTIONS, "jobs")
DEFAULT_STATE_VERSION: Final = "v1"

Gate = frozenset[str] | None
"""The capabilities that an action needs, all of them; None if nobody may do it."""


@dataclass(frozen=True, slots=True)
class Side:
    """What one contract means.

    Attributes:
        contract: The projection of the manifest.
        owned: The places of what others meet: surfaces, signals, progress, results, cancelling.
        gates: What the actions on surfaces need.
        payloads: The schemas of payloads by place, as canonical JSON.
        state: For each state store the readable versions, with place and schema.
        settings: Every setting by place.
    """

    contract: Mapping[str, Any]
    owned: dict[Path, None]
    gates: dict[Path, Gate]
    payloads: dict[Path, bytes]
    state: dict[str, dict[str, tuple[Path, bytes]]]
    settings: dict[Path, Value]

    def section(self, *path: str) -> Mapping[str, Any]:
        """A map of the contract; empty if there is none."""
        found = self.contract
        for step in path:
            found = found.get(step, {})
        return found


def read_side(manifest: Any, name: str) -> Side:
    """Read a manifest as one side of a comparison.

    Raises:
        ContractError: The manifest is not valid; it carries the findings.
    """
    if findings := validate(manifest):
        more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
        raise ContractError(
            f"the {name} manifest is not valid: {findings[0]}{more}", findings=findings
        )
    contract = projected(manifest)
    schemas = {name: canonical.encode(s) for name, s in contract.get("schemas", {}).items()}
    return Side(
        contract=contract,
        owned=dict.fromkeys(_owned(contract)),
        gates=dict(_gates(contract)),
        payloads=dict(_payloads(contract, schemas)),
        state={n: _versions(n, store, schemas) for n, store in contract.get("state", {}).items()},
        settings=settings(contract),
    )


def _owned(contract: Mapping[str, Any]) -> Iterator[Path]:
    for section in SURFACES:
        for name, surface in contract.get(section, {}).items():
            yield (section, name)
            for signal in surface.get("signals", ()):
                yield (section, name, "signals", signal)
            if section == "operations" and "progress" in surface:
                yield (section, name, "progress")
            if section == "jobs" and "result" in surface:
                yield (section, name, "result")
            if surface.get("cancel"):
                yield (section, name, "cancel")


def _gates(contract: Mapping[str, Any]) -> Iterator[tuple[Path, Gate]]:
    for surface in surfaces(contract):
        path: Path = (surface.section, surface.name)
        for action, needed in surface.gates.items():
            yield (*path, "capabilities", action), needed
        declared = contract[surface.section][surface.name]
        if declared.get("cancel") and "cancel" not in surface.gates:
            yield (*path, "capabilities", "cancel"), None


def _payloads(
    contract: Mapping[str, Any], schemas: dict[str, bytes]
) -> Iterator[tuple[Path, bytes]]:
    for path, name in schema_references(contract):
        if path[0] != "state":
            yield path, schemas[name]
    seen = set()
    for error in contract.get("errors", {}).values():
        # Of several declarations of one type the first counts.
        if error["type"] not in seen:
            schema = error.get("schema", True)
            text = schemas[schema["schema"]] if is_reference(schema) else canonical.encode(schema)
            yield ("errors", error["type"]), text
        seen.add(error["type"])


def _versions(
    name: str, store: Mapping[str, Any], schemas: dict[str, bytes]
) -> dict[str, tuple[Path, bytes]]:
    versions: dict[str, tuple[Path, bytes]] = {
        version: (("state", name, "acceptedVersions", version), schemas[reference["schema"]])
        for version, reference in store.get("acceptedVersions", {}).items()
    }
    current = state_version(store)
    return {**versions, current: (("state", name, "schema"), schemas[store["schema"]["schema"]])}


def state_version(store: Mapping[str, Any]) -> str:
    """The version under which a state store writes."""
    version: str = store.get("stateVersion", DEFAULT_STATE_VERSION)
    return version
