"""Headers of signed requests and answers, read strictly: each once, each in its one form."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from accord.community.errors import Code, CommunityError
from accord.community.rules import formats
from accord.community.rules.capabilities import Version, check_capability
from accord.kernel.clock import parse_time
from accord.kernel.ulid import is_ulid

CAPABILITY: Final = "X-HearthNet-Capability"
VERSION: Final = "X-HearthNet-Capability-Version"
REQUEST_ID: Final = "X-HearthNet-Request-Id"
FROM: Final = "X-HearthNet-From"
TO: Final = "X-HearthNet-To"
COMMUNITY: Final = "X-HearthNet-Community"
TIMESTAMP: Final = "X-HearthNet-Timestamp"
SIGNATURE: Final = "X-HearthNet-Signature"

FRESH_SECONDS: Final = 60
"""How far a timestamp may lie from the reader's clock, either way."""

RawHeaders = Iterable[tuple[bytes, bytes]]
"""Headers as ASGI and httpx (`headers.raw`) give them, repetitions included."""

Named = dict[str, str]
"""The headers of ours that were found, by the names above."""


def find(raw: RawHeaders) -> Named:
    """The protocol's headers, checked; others are ignored.

    Raises `bad_request` if one is repeated or malformed, `invalid_signature` for the signature.
    """
    found: Named = {}
    for raw_name, raw_value in raw:
        name = _NAMES.get(raw_name.lower())
        if name is None:
            continue
        if name in found:
            raise _bad("the header comes more than once", name)
        found[name] = raw_value.decode("ascii", "replace")
    check(found)
    return found


def check(named: Named) -> None:
    """Check the forms of headers; see `find`."""
    for name, value in named.items():
        is_right, form = _FORMS[name]
        if not is_right(value):
            code = Code.INVALID_SIGNATURE if name == SIGNATURE else Code.BAD_REQUEST
            raise CommunityError(code, f"expected {form}", where=name)


def required(named: Named, name: str) -> str:
    """The value of a header; raises `bad_request` if it is missing."""
    value = named.get(name)
    if value is None:
        raise _bad("the header is missing", name)
    return value


def signature(named: Named) -> bytes:
    """The 64 bytes of the signature; raises `bad_request` if it is missing."""
    return formats.read_signature(required(named, SIGNATURE)) or b""


def present(named: Mapping[str, str | None]) -> Named:
    """The headers that have a value."""
    return {name: value for name, value in named.items() if value is not None}


def refused(named: Named, *names: str) -> None:
    """Raise `bad_request` if one of these headers is present."""
    for name in names:
        if name in named:
            raise _bad("the header has no place here", name)


def check_fresh(timestamp: str, now: float) -> None:
    """Raise `expired` if a timestamp is too far from now."""
    if abs(now - parse_time(timestamp)) > FRESH_SECONDS:
        raise CommunityError(
            Code.EXPIRED,
            f"the timestamp lies more than {FRESH_SECONDS} seconds from this node's clock",
            where=TIMESTAMP,
            mend="set the clock, and sign again",
        )


def _is_capability(value: str) -> bool:
    return _passes(check_capability, value)


def _is_version(value: str) -> bool:
    return _passes(Version.parse, value)


def _passes(check: Callable[[str], object], value: str) -> bool:
    try:
        check(value)
    except CommunityError:
        return False
    return True


_FORMS: Final[dict[str, tuple[Callable[[str], object], str]]] = {
    CAPABILITY: (_is_capability, "a capability such as llm.chat"),
    VERSION: (_is_version, "a version such as 1.0"),
    REQUEST_ID: (is_ulid, "a ULID"),
    FROM: (formats.is_id, "the full id of a node"),
    TO: (formats.is_id, "the full id of a node"),
    COMMUNITY: (formats.is_id, "the full id of a community"),
    TIMESTAMP: (formats.is_time, "a time such as 2026-05-26T08:14:22Z"),
    SIGNATURE: (formats.read_signature, "ed25519: and 86 characters of base64url"),
}

_NAMES: Final = {name.lower().encode(): name for name in _FORMS}


def _bad(what: str, where: str) -> CommunityError:
    return CommunityError(Code.BAD_REQUEST, what, where=where)
