"""RFC 8785 in plain Python: slow, complete, and the definition that `encoding` must equal."""

from collections.abc import Callable
from enum import Enum
from typing import Any
from uuid import UUID

import orjson

from accord.kernel.canonical.limits import MAX_DEPTH, MAX_INTEGER, CanonicalError
from accord.kernel.canonical.numbers import spell
from accord.kernel.finding import pointer


def write(value: Any) -> bytes:
    """Write a JSON value canonically.

    Raises:
        CanonicalError: Something in the value is not JSON; `where` is its JSON Pointer.
    """
    parts: list[str] = []
    _write(value, (), parts.append)
    return "".join(parts).encode()


def _write(value: Any, path: tuple[str | int, ...], emit: Callable[[str], None]) -> None:
    match value:
        case None:
            emit("null")
        case True:
            emit("true")
        case False:
            emit("false")
        case Enum():
            _write(value.value, path, emit)
        case UUID():
            emit(f'"{value}"')
        case str():
            emit(_string(value, path))
        case int():
            emit(_integer(value, path))
        case float():
            emit(_float(value, path))
        case list() | tuple():
            _check_depth(path)
            separator = "["
            for index, item in enumerate(value):
                emit(separator)
                _write(item, (*path, index), emit)
                separator = ","
            emit("]" if value else "[]")
        case dict():
            _check_depth(path)
            separator = "{"
            for key in sorted(value, key=lambda key: _utf16(key, path)):
                emit(separator)
                emit(_string(key, path))
                emit(":")
                _write(value[key], (*path, key), emit)
                separator = ","
            emit("}" if value else "{}")
        case _:
            raise CanonicalError(
                f"a {type(value).__name__} has no JSON form",
                where=_where(path),
                mend="turn it into text, a number, a list or a dict first",
            )


def _check_depth(path: tuple[str | int, ...]) -> None:
    if len(path) >= MAX_DEPTH:
        raise CanonicalError(f"nested deeper than {MAX_DEPTH} levels", where=_where(path))


def _string(text: str, path: tuple[str | int, ...]) -> str:
    try:
        return orjson.dumps(str(text)).decode()
    except TypeError as error:
        raise _lone_surrogate(path) from error


def _utf16(key: object, path: tuple[str | int, ...]) -> bytes:
    if not isinstance(key, str):
        raise CanonicalError(
            f"the member name {key!r} is not text", where=_where(path), mend="use strings as keys"
        )
    try:
        return key.encode("utf-16-be")
    except UnicodeEncodeError as error:
        raise _lone_surrogate(path) from error


def _lone_surrogate(path: tuple[str | int, ...]) -> CanonicalError:
    return CanonicalError("a text holds half of a surrogate pair", where=_where(path))


def _integer(number: int, path: tuple[str | int, ...]) -> str:
    if -MAX_INTEGER <= number <= MAX_INTEGER:
        return int.__repr__(number)
    try:
        double = float(number)
    except OverflowError:
        double = 0.0
    if double != number:
        raise CanonicalError(
            "an integer that a double cannot hold exactly",
            where=_where(path),
            mend="write it as a string",
        )
    return spell(double)


def _float(number: float, path: tuple[str | int, ...]) -> str:
    try:
        return spell(number)
    except CanonicalError as error:
        raise CanonicalError(error.what, where=_where(path)) from None


def _where(path: tuple[str | int, ...]) -> str:
    return pointer(*path) or "the value itself"
