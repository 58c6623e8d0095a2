"""Bodies whose law is a schema: strict JSON of a bounded size that keeps the schema of its stream.

The schemas are data files, one for each stream, compiled once in a process.
"""

from typing import Any

from accord.kernel import canonical
from accord.pipeline.checks.verdict import RefusedError
from accord.pipeline.landing.redaction import body_schema


def decode_body(raw: bytes, most: int) -> Any:
    """Read a body strictly.

    Raises:
        RefusedError: It is too long, or not strict JSON.
    """
    if len(raw) > most:
        raise RefusedError(
            "body.size", f"a body of {len(raw)} bytes where at most {most} are allowed"
        )
    try:
        return canonical.decode(raw, max_bytes=most)
    except canonical.CanonicalError as error:
        raise RefusedError("json.syntax", error) from None


def check_body(stream: str, raw: bytes) -> Any:
    """Read a body and hold it against the schema of its stream.

    Raises:
        RefusedError: It breaks a rule.
    """
    value = decode_body(raw, canonical.MAX_BYTES)
    schema = body_schema(stream)
    if not schema.is_valid(value):
        raise RefusedError("schema", schema.findings(value)[0])
    return value
