"""Publishing: an event is there for good once the call returns.

Owns the message's id, by which a second attempt is known as the same event, and its time.
"""

import asyncio
from typing import Any, Final

from accord import tracing
from accord.fabric import payloads
from accord.fabric.errors import DeadlineError, UnavailableError
from accord.fabric.events.subjects import subject_of
from accord.fabric.link import TIMEOUT, Link
from accord.fabric.streams import append
from accord.fabric.terms import Event
from accord.kernel.clock import format_time
from accord.tracing import SpanKind

TIME: Final = "Trellis-Event-Time"
ID: Final = "Nats-Msg-Id"

_PAUSES: Final = (0.05, 0.1, 0.2, 0.4, 0.8)


async def publish(link: Link, event: Event, payload: Any, *, within: float = TIMEOUT) -> str:
    """Publish an event durably and return its id.

    While the server cannot be reached it is tried again under the same id, so that it is stored
    once however often it is sent.

    Raises:
        ValidationError: The payload breaks the contract; nothing was sent.
        FabricError: It is not known to be stored.
    """
    data = payloads.write(event.event, payload, "the event")
    subject = subject_of(event, payload)
    name = link.ids.new()
    # Not the subject: it may be made of what the event says.
    with tracing.step("fabric publish", SpanKind.PRODUCER, surface=event.name):
        headers = {
            TIME: format_time(link.clock.now(), millis=True),
            tracing.HEADER: tracing.header(),
        }
        await _insist(link, subject, data, headers, name, within)
    return name


async def _insist(
    link: Link, subject: str, data: bytes, headers: dict[str, str], name: str, within: float
) -> None:
    loop = asyncio.get_running_loop()
    end, attempt = loop.time() + within, 0
    while True:
        try:
            await append(link.inbox, subject, data, headers=headers, message_id=name)
        except (UnavailableError, DeadlineError):
            pause = _PAUSES[min(attempt, len(_PAUSES) - 1)]
            if loop.time() + pause >= end:
                raise
            attempt += 1
            await asyncio.sleep(pause)
        else:
            return
