"""The pure law of contracts: what a manifest says, whether it is valid, and what follows from it.

Nothing here does I/O (but for `sdk`, which writes the files that it renders), reads a clock or
draws a random number; only `accord.kernel` is imported. Authoring is in
`accord.contracts.authoring`.
"""

from accord.contracts.analysis import analyze
from accord.contracts.asyncapi_export import asyncapi
from accord.contracts.baseline import with_baseline
from accord.contracts.compatibility import Change, Report, compare
from accord.contracts.containment import Verdict, contains
from accord.contracts.effective import Effective, collisions, union
from accord.contracts.errors import ContractError
from accord.contracts.manifest import digest, normalize, project, validate
from accord.contracts.permissions import Bindings, Grants, Role, grants
from accord.contracts.sdk_export import render_sdk, sdk
from accord.contracts.uses import Resolution, resolve_uses
from accord.kernel.finding import Finding

__all__ = [
    "Bindings",
    "Change",
    "ContractError",
    "Effective",
    "Finding",
    "Grants",
    "Report",
    "Resolution",
    "Role",
    "Verdict",
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
    "union",
    "validate",
    "with_baseline",
]
