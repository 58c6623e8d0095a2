"""Events of a community: the envelope is the law, and every signature is verified once, here."""

from accord.community.envelope import MAX_BYTES, Event, read_signed, verify
from accord.community.errors import CommunityError
from accord.pipeline.checks.bodies import decode_body
from accord.pipeline.checks.verdict import RefusedError
from accord.pipeline.errors import PipelineError
from accord.pipeline.landing import redaction


def check_event(raw: bytes) -> Event:
    """Read an event and verify its signatures.

    Raises:
        RefusedError: It breaks a rule; where it could be read, the error carries it.
    """
    value = decode_body(raw, MAX_BYTES)
    # An event that was in clear text lands without it, so its signature cannot be verified here.
    if isinstance(value, dict) and "redacted" in value:
        return _redacted(raw)
    try:
        event, signed = read_signed(value)
    except CommunityError as error:
        raise RefusedError("event.form", error) from None
    try:
        verify(event, signed)
    except CommunityError as error:
        raise RefusedError("signature", error, event) from None
    return event


def _redacted(raw: bytes) -> Event:
    try:
        event = redaction.restore(raw.decode())
    except PipelineError as error:
        raise RefusedError("event.redacted", error) from None
    if event is None:
        raise RefusedError("event.form", "an event has no member `redacted`")
    return event
