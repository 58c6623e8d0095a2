"""Reading the bodies of requests: strict JSON, small, in time, and each member with its type.

Owns the limits. Unknown members are ignored on every route, because the contract grows by adding
some; a member that is known and wrong is refused with its name. Nothing that was sent is shown.
"""

import asyncio
from typing import Any, Final

from starlette.requests import ClientDisconnect, Request

from accord.kernel import canonical
from accord.relay.connector.control.names import is_name
from accord.relay.errors import Code, RelayError
from accord.relay.wire.members import Payload, bad, texts

MAX_BODY: Final = 65_536
_SECONDS: Final = 10.0


async def read_body(request: Request) -> Payload:
    """The JSON object that a request carries; no body at all is an empty one.

    Raises:
        RelayError: It is too large, too slow, or not an object in strict JSON.
    """
    raw = bytearray()
    try:
        async with asyncio.timeout(_SECONDS):
            async for chunk in request.stream():
                raw += chunk
                if len(raw) > MAX_BODY:
                    raise RelayError(Code.TOO_LARGE, f"a body has at most {MAX_BODY} bytes")
    except TimeoutError:
        raise bad("the body did not arrive in time") from None
    except ClientDisconnect:
        raise bad("the body did not arrive") from None
    if not raw:
        return {}
    try:
        value = canonical.decode(bytes(raw), max_bytes=MAX_BODY)
    except canonical.CanonicalError as error:
        raise bad(f"the body is not strict JSON: {error.what}", where=error.where) from None
    if not isinstance(value, dict):
        raise bad("the body is a JSON object")
    return value


def name(body: Payload, member: str) -> str:
    """An id that must be there."""
    value = body.get(member)
    if not is_name(value):
        raise bad("expected an id: a text of printable characters", where=f"/{member}")
    return value


def optional_name(body: Payload, member: str, default: str = "") -> str:
    """An id, or the default where it is missing, null or empty."""
    return default if body.get(member) in (None, "") else name(body, member)


def names(body: Payload, member: str) -> tuple[str, ...]:
    """A list of ids; a missing one is empty."""
    found = texts(body, member)
    if not all(is_name(each) for each in found):
        raise bad("expected ids: texts of printable characters", where=f"/{member}")
    return tuple(dict.fromkeys(found))


def optional_url(body: Payload, member: str) -> str | None:
    """A URL as it was given; whether it may be used is not decided here."""
    value: Any = body.get(member)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise bad("expected a URL", where=f"/{member}")
    return value
