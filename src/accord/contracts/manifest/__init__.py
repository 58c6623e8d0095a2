"""The manifest of a contract (`trellis.contract.v1`): normal form, validity, digest.

`validate` accepts any value; the other functions take a valid manifest. Results share unchanged
parts with the argument, so treat both as immutable.
"""

from collections.abc import Callable
from typing import Any

from accord.contracts.errors import ContractError
from accord.contracts.manifest.projection import (
    BACKOFF_MS,
    JOB_DEFAULTS,
    KV_DEFAULTS,
    STORE_DEFAULTS,
    normalized,
    projected,
    schema_references,
)
from accord.contracts.manifest.rules import RULES, ManifestRule
from accord.contracts.manifest.view import read_view, usual_schema
from accord.kernel import canonical
from accord.kernel.canonical import sha256
from accord.kernel.finding import Finding, pointer

__all__ = [
    "BACKOFF_MS",
    "JOB_DEFAULTS",
    "KV_DEFAULTS",
    "RULES",
    "STORE_DEFAULTS",
    "ManifestRule",
    "digest",
    "normalize",
    "project",
    "schema_references",
    "text_digest",
    "usual_schema",
    "validate",
]


def validate(manifest: Any) -> list[Finding]:
    """Everything that is wrong with a manifest, in rule order; empty if it is valid."""
    seen = read_view(manifest)
    return [
        Finding(rule.id, pointer(*path), message)
        for rule in RULES
        if rule.section is None or rule.section in seen.manifest
        for path, message in rule.check(seen)
    ]


def normalize(manifest: Any) -> dict[str, Any]:
    """The manifest without unknown members, with consumer defaults; raises ContractError."""
    return _shaped(normalized, manifest)


def project(manifest: Any) -> dict[str, Any]:
    """The parts that the digest covers (specification, section 6.1); raises ContractError."""
    return _shaped(projected, manifest)


def digest(manifest: Any) -> str:
    """The digest that identifies a contract; raises ContractError with findings."""
    findings = validate(manifest)
    if findings:
        raise ContractError.invalid("the manifest", findings)
    return str(sha256(canonical.encode(projected(manifest))))


def text_digest(manifest: Any) -> str:
    """The digest of a manifest including display texts and docs; raises like `normalize`."""
    return str(sha256(canonical.encode(normalize(manifest))))


def _shaped(form: Callable[[Any], dict[str, Any]], manifest: Any) -> dict[str, Any]:
    seen = read_view(manifest)
    if seen.refusal is not None or seen.faults:
        raise ContractError.invalid("the manifest", validate(manifest))
    return form(manifest)
