"""The manifest of a contract (`trellis.contract.v1`): normal form, validity, digest.

`validate` accepts any value; the other functions take a valid manifest. Results share unchanged
parts with the argument, so treat both as immutable.
"""

from accord.contracts.manifest.projection import (
    BACKOFF_MS,
    JOB_DEFAULTS,
    KV_DEFAULTS,
    STORE_DEFAULTS,
    digest,
    normalize,
    project,
    text_digest,
)
from accord.contracts.manifest.rules import RULES, ManifestRule, validate
from accord.contracts.manifest.view import is_reference, schema_references, usual_schema

__all__ = [
    "BACKOFF_MS",
    "JOB_DEFAULTS",
    "KV_DEFAULTS",
    "RULES",
    "STORE_DEFAULTS",
    "ManifestRule",
    "digest",
    "is_reference",
    "normalize",
    "project",
    "schema_references",
    "text_digest",
    "usual_schema",
    "validate",
]
