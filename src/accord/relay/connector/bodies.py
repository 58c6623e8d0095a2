"""Request bodies: strict JSON, bounded in size and time, and typed readers for their members.

Unknown members are ignored; a known one of the wrong type is refused by name.
"""

from typing import Any, Final

from starlette.requests import Request

from accord.kernel import canonical
from accord.relay.errors import Code, RelayError
from accord.relay.rules.members import Payload, bad, is_name, texts
from accord.web import bodies

MAX_BODY: Final = 65_536
_LIMITS: Final = bodies.BodyLimits(MAX_BODY)


async def read_body(request: Request) -> Payload:
    """The JSON object in a request's body; a missing body is an empty object.

    Raises:
        RelayError: It is too large, too slow, or not an object in strict JSON.
    """
    try:
        raw = await bodies.read(request, _LIMITS)
    except bodies.BodyError as error:
        code = Code.TOO_LARGE if error.status == Code.TOO_LARGE.status else Code.BAD_REQUEST
        raise RelayError(code, error.what, mend=error.mend) from None
    if not raw:
        return {}
    try:
        value = canonical.decode(raw, max_bytes=MAX_BODY)
    except canonical.CanonicalError as error:
        raise bad(f"the body is not strict JSON: {error.what}", where=error.where) from None
    if not isinstance(value, dict):
        raise bad("the body must be a JSON object")
    return value


def name(body: Payload, member: str) -> str:
    """A required id."""
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
    """A URL, unchecked, or None."""
    value: Any = body.get(member)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise bad("expected a URL", where=f"/{member}")
    return value
