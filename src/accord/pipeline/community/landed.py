"""From a landed record that was checked to its event."""

from typing import Final

from accord.community.envelope import Event
from accord.community.envelope.event import stored

_EVENT: Final = '{"event":'
_REDACTED: Final = ',"redacted":{'


def event_of(body: str, digest: str) -> Event:
    """The event of a record that was checked; of a redacted one, all that the fold reads."""
    if body.startswith(_EVENT):
        # Canonical text whose last member is the redaction, which holds no text of anybody's.
        body = body[len(_EVENT) : body.rindex(_REDACTED)]
    return stored(body, bytes.fromhex(digest))
