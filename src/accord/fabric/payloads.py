"""Payloads on their way out and in: JSON that keeps the schema of its surface, or a typed error.

Both ends check, so that neither depends on the other's care. Pure.
"""

from typing import Any

from accord.fabric.errors import ValidationError
from accord.kernel import canonical
from accord.kernel.schema import Schema


def write(schema: Schema, value: Any, what: str) -> bytes:
    """A payload's bytes.

    Raises:
        ValidationError: It is no JSON, or breaks the schema.
    """
    try:
        data = canonical.encode(value)
    except canonical.CanonicalError as error:
        raise ValidationError(f"{what} is no JSON: {error}") from None
    check(schema, value, data, what)
    return data


def read(schema: Schema, data: bytes, what: str) -> Any:
    """The payload that bytes are.

    Raises:
        ValidationError: They are no strict JSON, or break the schema.
    """
    value = parse(data, what)
    if not schema.is_valid(value):
        raise broken(schema, value, what)
    return value


def parse(data: bytes, what: str) -> Any:
    """The JSON value that bytes are.

    Raises:
        ValidationError: They are no strict JSON.
    """
    try:
        return canonical.decode(data)
    except canonical.CanonicalError as error:
        raise ValidationError(f"{what} is no JSON: {error}") from None


def check(schema: Schema, value: Any, data: bytes, what: str) -> None:
    """Refuse a value that breaks the schema; `data` is the same value, written.

    Raises:
        ValidationError: It breaks the schema.
    """
    try:
        kept = schema.is_valid(value)
    except (TypeError, ValueError):  # tuples, enums: what the encoder takes and the validator not
        value = canonical.decode(data, max_bytes=len(data))
        kept = schema.is_valid(value)
    if not kept:
        raise broken(schema, value, what)


def broken(schema: Schema, value: Any, what: str) -> ValidationError:
    """The error that says how a value breaks a schema."""
    findings = schema.findings(value)
    return ValidationError.of(f"{what} does not keep the contract", findings)
