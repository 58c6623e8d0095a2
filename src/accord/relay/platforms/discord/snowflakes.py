"""Discord's ids: numbers that grow with time. Pure."""

from typing import Any, Final, TypeGuard

_EPOCH_MS: Final = 1_420_070_400_000
_LONGEST: Final = 20


def is_snowflake(value: Any) -> TypeGuard[str]:
    """Whether this is an id as the API writes them."""
    return (
        isinstance(value, str)
        and 0 < len(value) <= _LONGEST
        and value.isascii()
        and value.isdecimal()
    )


def before(seconds: float) -> int:
    """The greatest id that is less than any made at a time, in seconds since the epoch."""
    return max(0, ((int(seconds * 1000) - _EPOCH_MS) << 22) - 1)
