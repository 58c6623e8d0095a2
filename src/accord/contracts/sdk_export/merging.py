"""Several contracts as one runtime API (specification, section 18)."""

from collections.abc import Iterable, Mapping
from typing import Any

from accord.contracts.errors import ContractError
from accord.contracts.manifest import normalize
from accord.contracts.surface import SECTIONS
from accord.kernel.finding import Finding, pointer


def runtime_api(contracts: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The surfaces of contracts by section and logical name, each with its contract and schemas.

    Raises:
        ContractError: Two contracts have a surface of the same name, or one has not the right
            shape.
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
