"""The manifest of a contract: its normal form, its validity, its digest.

A manifest is a JSON value of the format `trellis.contract.v1`. `validate` says everything that is
wrong with one, whatever value it is given; the other functions take a valid one and share with
their result what they do not change, so treat both as immutable.
"""

from collections.abc import Callable
from typing import Any

from accord.contracts.errors import ContractError
from accord.contracts.manifest.projecting import normalized, projected
from accord.contracts.manifest.rules import RULES, Rule
from accord.contracts.manifest.view import view
from accord.kernel import canonical
from accord.kernel.digest import sha256
from accord.kernel.finding import Finding, pointer

__all__ = ["RULES", "Rule", "digest", "normalize", "project", "validate"]


def validate(manifest: Any) -> list[Finding]:
    """Everything that is wrong with a manifest, in the order of the rules; empty if it is valid."""
    seen = view(manifest)
    return [
        Finding(rule.id, pointer(*path), message)
        for rule in RULES
        if rule.section is None or rule.section in seen.manifest
        for path, message in rule.check(seen)
    ]


def normalize(manifest: Any) -> dict[str, Any]:
    """The supported form of a manifest: unknown members dropped, consumers with their defaults.

    Raises:
        ContractError: The manifest does not have the right shape.
    """
    return _shaped(normalized, manifest)


def project(manifest: Any) -> dict[str, Any]:
    """What of a manifest its digest names (specification, section 6.1).

    Raises:
        ContractError: The manifest does not have the right shape.
    """
    return _shaped(projected, manifest)


def digest(manifest: Any) -> str:
    """The digest by which a contract is known.

    Raises:
        ContractError: The manifest is not valid; it carries the findings.
    """
    findings = validate(manifest)
    if findings:
        raise _refusal(findings)
    return str(sha256(canonical.encode(projected(manifest))))


def _shaped(form: Callable[[Any], dict[str, Any]], manifest: Any) -> dict[str, Any]:
    seen = view(manifest)
    if seen.refusal is not None or seen.faults:
        raise _refusal(validate(manifest))
    return form(manifest)


def _refusal(findings: list[Finding]) -> ContractError:
    more = f" and {len(findings) - 1} more" if len(findings) > 1 else ""
    return ContractError(f"the manifest is not valid: {findings[0]}{more}", findings=findings)
