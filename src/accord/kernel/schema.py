"""JSON Schema validation, draft 2019-09, by jsonschema-rs.

Compiled schemas are cached. External references and patterns that a linear-time engine cannot run
(look-around, back-references) are refused. `format` is an annotation. Findings never contain
values, which may be secret.
"""

from threading import Lock
from typing import Any, Final, NoReturn

import jsonschema_rs
from cachetools import LRUCache
from jsonschema_rs import Draft201909Validator, RegexOptions, ValidationError

from accord.kernel import canonical
from accord.kernel.canonical import pointer
from accord.kernel.errors import AccordError, Finding

MAX_FINDINGS: Final = 100
"""Findings per validation."""

_CACHE_SIZE: Final = 4096
_MASK: Final = "the value"


class SchemaError(AccordError):
    """A schema cannot be used."""


class Schema:
    """A compiled schema; `is_valid` is the library's own method, without overhead."""

    __slots__ = ("_validator", "is_valid")

    def __init__(self, validator: Draft201909Validator) -> None:
        self._validator = validator
        self.is_valid = validator.is_valid

    def findings(self, value: Any) -> list[Finding]:
        """Every violation, at most MAX_FINDINGS."""
        found: list[Finding] = []
        for error in self._validator.iter_errors(value):
            if len(found) == MAX_FINDINGS:
                break
            found.append(_finding(error))
        return found


def compile_schema(schema: Any) -> Schema:
    """Compile a schema, or take it from the cache.

    Raises:
        SchemaError: It is not a valid schema of draft 2019-09, has an external reference, or a
            pattern that cannot be run in linear time.
    """
    try:
        key = canonical.encode(schema)
    except canonical.CanonicalError as error:
        raise SchemaError(f"the schema is not JSON: {error}") from None
    with _lock:
        known = _cache.get(key)
        if known is not None:
            return known
    compiled = _compile(schema)
    with _lock:
        _cache[key] = compiled
    return compiled


_cache: LRUCache[bytes, Schema] = LRUCache(_CACHE_SIZE)
_lock = Lock()


def _compile(schema: Any) -> Schema:
    try:
        return Schema(
            Draft201909Validator(
                schema,
                validate_formats=False,
                mask=_MASK,
                retriever=_no_retrieval,
                pattern_options=RegexOptions(),
            )
        )
    except ValidationError as error:
        raise _refusal(error) from None
    except (jsonschema_rs.ReferencingError, ValueError, TypeError) as error:
        raise SchemaError(f"the schema cannot be compiled: {error}") from None


def _refusal(error: ValidationError) -> SchemaError:
    where = pointer(*error.instance_path) or "the schema"
    if error.kind.name == "format":  # the only format that the meta-schema asserts is "regex"
        return SchemaError(
            "an invalid pattern, or one that cannot be run in linear time",
            where=where,
            mend="leave out look-around and back-references, and keep repetitions small",
        )
    return SchemaError(f"not a schema of draft 2019-09: {error.message}", where=where)


def _no_retrieval(uri: str) -> NoReturn:
    raise ValueError(f"{uri} is outside the schema")


def _finding(error: ValidationError) -> Finding:
    return Finding(
        rule=f"schema.{error.kind.name}",
        pointer=pointer(*error.instance_path),
        message=error.message,
    )
