"""Records as JSON, for operators: the names of their fields, sets in order, times as numbers."""

import dataclasses
from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any


def shown(value: Any) -> Any:
    """A record, or anything made of records, as JSON."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        return {field.name: shown(getattr(value, field.name)) for field in fields}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {_name(key): shown(each) for key, each in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(map(shown, value), key=str)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [shown(each) for each in value]
    return value


def _name(key: Any) -> str:
    return " ".join(key) if isinstance(key, tuple) else str(key)
