"""Listening live: events from now on, as long as somebody reads them. Nothing is replayed."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import structlog
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from accord.fabric.backlog import Backlog
from accord.fabric.errors import UnavailableError, ValidationError
from accord.fabric.events.received import Received, read
from accord.fabric.events.subjects import pattern_of
from accord.fabric.link import Link
from accord.fabric.terms import Event
from accord.fabric.wire import is_answer, subscribe

_log = structlog.stdlib.get_logger(__name__)


@asynccontextmanager
async def listen(
    link: Link, event: Event, *, where: Mapping[str, str | int | float] | None = None
) -> AsyncIterator[AsyncIterator[Received]]:
    """Hear every event from the moment the block is entered until it ends.

    An event that does not keep its contract is left out, and logged.

    Args:
        link: The session's link.
        event: Which event.
        where: Only those with these values, by the pointers of the event's subject.

    Raises:
        UnauthorizedError: The session may not subscribe to the event; reading raises it, too,
            when the grant is lost later.
    """
    subject = pattern_of(event, where)
    backlog = Backlog(subject)

    def heard(msg: Msg) -> None:
        if not is_answer(msg):
            backlog.put(msg)

    async def events() -> AsyncIterator[Received]:
        while True:
            msg = await backlog.get()
            try:
                received = read(event, msg)
            except ValidationError as error:
                _log.warning("an event breaks its contract", event_name=event.name, why=str(error))
                continue
            yield received

    with link.watching(subject, backlog.fail):
        try:
            subscription = await subscribe(link.nats, subject, heard)
            await link.nats.flush()
        except NatsError as error:
            raise UnavailableError(f"the connection cannot be used: {error}") from None
        backlog.raise_failure()
        try:
            yield events()
        finally:
            if not link.nats.is_closed:
                await subscription.unsubscribe()
