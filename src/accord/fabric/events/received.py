"""An event as its readers get it."""

from dataclasses import dataclass
from typing import Any

from nats.aio.msg import Msg

from accord import tracing
from accord.fabric import payloads
from accord.fabric.events.publishing import ID, TIME
from accord.fabric.terms import Event


@dataclass(frozen=True, slots=True)
class Received:
    """An event that came.

    Attributes:
        name: The event's name in its contract.
        payload: What it says.
        subject: Where it was published.
        id: Its id; the same event keeps it however often it is delivered.
        time: When it was published, as its publisher wrote it.
        trace: The trace that it belongs to.
    """

    name: str
    payload: Any
    subject: str
    id: str
    time: str
    trace: tracing.Trace | None


def read(event: Event, msg: Msg) -> Received:
    """The event that a message is.

    Raises:
        ValidationError: It does not keep the contract.
    """
    headers = msg.headers or {}
    return Received(
        event.name,
        payloads.read(event.event, msg.data, f"the event {event.name}"),
        msg.subject,
        headers.get(ID, ""),
        headers.get(TIME, ""),
        tracing.parse(headers.get(tracing.HEADER)),
    )
