"""Contracts: reading, validating, comparing and resolving manifests. Pure.

No I/O (except `export.sdk`, which writes files), clock or randomness; imports only `accord.kernel`.
Contracts are written with `accord.contracts.authoring`.
"""

from accord.contracts.analysis import analyze
from accord.contracts.compatibility import CompatibilityReport, ContractChange, compare
from accord.contracts.containment import ContainmentVerdict, contains
from accord.contracts.effective import (
    EffectiveContract,
    Resolution,
    collisions,
    resolve_uses,
    union,
    with_baseline,
)
from accord.contracts.errors import ContractError
from accord.contracts.export.asyncapi_document import asyncapi
from accord.contracts.export.package import render_sdk, sdk
from accord.contracts.manifest import digest, normalize, project, text_digest, validate
from accord.contracts.permissions import Bindings, Grants, SessionRole, grants
from accord.kernel.errors import Finding

__all__ = [
    "Bindings",
    "CompatibilityReport",
    "ContainmentVerdict",
    "ContractChange",
    "ContractError",
    "EffectiveContract",
    "Finding",
    "Grants",
    "Resolution",
    "SessionRole",
    "analyze",
    "asyncapi",
    "collisions",
    "compare",
    "contains",
    "digest",
    "grants",
    "normalize",
    "project",
    "render_sdk",
    "resolve_uses",
    "sdk",
    "text_digest",
    "union",
    "validate",
    "with_baseline",
]
