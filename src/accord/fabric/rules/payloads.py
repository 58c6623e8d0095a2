"""Payloads: JSON validated against the schema of its surface, on both ends. Pure."""

from typing import Any

from accord.fabric.rules.errors import ValidationError
from accord.kernel import canonical
from accord.kernel.schema import Schema


def write(schema: Schema, value: Any, what: str) -> bytes:
    """A payload's bytes; raises ValidationError if it is not JSON or breaks the schema."""
    try:
        data = canonical.encode(value)
    except canonical.CanonicalError as error:
        raise ValidationError(f"{what} is not JSON: {error}") from None
    check(schema, value, data, what)
    return data


def read(schema: Schema, data: bytes, what: str) -> Any:
    """The payload of a message; raises ValidationError if it is not JSON or breaks the schema."""
    value = parse(data, what)
    if not schema.is_valid(value):
        raise broken(schema, value, what)
    return value


def parse(data: bytes, what: str) -> Any:
    """Parse strict JSON; raises ValidationError."""
    try:
        return canonical.decode(data)
    except canonical.CanonicalError as error:
        raise ValidationError(f"{what} is not JSON: {error}") from None


def check(schema: Schema, value: Any, data: bytes, what: str) -> None:
    """Raise ValidationError if a value breaks the schema; `data` is the encoded value."""
    try:
        kept = schema.is_valid(value)
    except (TypeError, ValueError):  # tuples and enums, which only the encoder accepts
        value = canonical.decode(data, max_bytes=len(data))
        kept = schema.is_valid(value)
    if not kept:
        raise broken(schema, value, what)


def broken(schema: Schema, value: Any, what: str) -> ValidationError:
    """The error that says how a value breaks a schema."""
    findings = schema.findings(value)
    return ValidationError.of(f"{what} does not keep the contract", findings)
