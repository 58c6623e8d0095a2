"""The door to every check: from a record to its verdict."""

from collections.abc import Callable
from typing import Any, Final

from blake3 import blake3

from accord.community.envelope import Event
from accord.pipeline import streams
from accord.pipeline.checks import bodies, community, contracts
from accord.pipeline.checks.contracts import Manifests
from accord.pipeline.checks.verdict import Checked, Head, RefusedError

NO_MANIFESTS: Final = Manifests({})

_LAWS: Final[dict[str, Callable[[Any, Manifests], None]]] = {
    streams.CONTRACTS_HISTORY: contracts.check_history,
    streams.CONTRACTS_CALLS: contracts.check_call,
}
"""What a stream asks for beyond its schema."""


def check(
    stream: str, record_id: str, body: bytes | str | None, manifests: Manifests = NO_MANIFESTS
) -> Checked:
    """The verdict on one record.

    Args:
        stream: Where it landed.
        record_id: Its name within the stream.
        body: The exact text, in UTF-8 when it is bytes.
        manifests: The contracts that calls may name.
    """
    raw = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    rule = reason = None
    try:
        event = _judge(stream, raw, manifests)
    except RefusedError as refused:
        rule, reason, event = refused.rule, refused.what, refused.event
    if event is None:
        return Checked(_digest(stream, record_id, raw or b""), rule, reason)
    return Checked(event.digest.hex(), rule, reason, Head.of(event))


def _judge(stream: str, raw: bytes | None, manifests: Manifests) -> Event | None:
    if raw is None:
        raise RefusedError("body.missing", "the record has no body")
    if stream == streams.COMMUNITY_EVENTS:
        return community.check_event(raw)
    if stream not in streams.STREAMS:
        raise RefusedError("stream.unknown", f"there is no stream {stream[:80]!r}")
    value = bodies.check_body(stream, raw)
    if law := _LAWS.get(stream):
        law(value, manifests)
    return None


def _digest(stream: str, record_id: str, raw: bytes) -> str:
    name = f"{stream}\0{record_id}\0".encode("utf-8", "surrogatepass")
    return blake3(name + raw).hexdigest()
