"""Which schemas a question can be asked about."""

from typing import Any, Final

from accord.contracts.errors import ContractError
from accord.kernel.schema import Schema, SchemaError, compile_schema

MAX_VALUES: Final = 100_000
"""JSON values that a schema may be made of."""


def compiled(schema: Any, name: str) -> Schema | None:
    """The schema as the validator has it; None when it is too large to be looked at.

    Raises:
        ContractError: The validator cannot use it.
    """
    if _is_large(schema):
        return None
    try:
        return compile_schema(schema)
    except SchemaError as error:
        raise ContractError(
            f"{name} cannot be used: {error.what}", where=error.where, mend=error.mend
        ) from None


def _is_large(schema: Any) -> bool:
    seen = 0
    todo: list[Any] = [schema]
    while todo:
        value = todo.pop()
        if isinstance(value, dict | list):
            seen += len(value)
            if seen > MAX_VALUES:
                return True
            todo.extend(value.values() if isinstance(value, dict) else value)
    return False
