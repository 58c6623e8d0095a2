"""Durable consumer groups: every event of the group at least once, in the order it was published.

The consumer is the authority's; this pulls from it, and acknowledges what was handled. An event
whose handler fails comes again after the group's backoff, and one that does not keep its contract
never does.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from accord import tracing
from accord.fabric.errors import FabricError, ValidationError
from accord.fabric.events.received import Received, read
from accord.fabric.events.subjects import event_of
from accord.fabric.link import Link
from accord.fabric.pulling import Pull
from accord.fabric.terms import Event
from accord.tracing import SpanKind

BACKOFF_MS: Final = (5_000, 30_000, 120_000, 600_000, 1_800_000)
ACK_WAIT_MS: Final = 300_000
_CONFIRM_SECONDS: Final = 2.0
_CONFIRM_TIMES: Final = 3
_PAUSE_SECONDS: Final = 1.0

EventHandler = Callable[[Received], Awaitable[None]]

_log = structlog.stdlib.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Group:
    """A consumer group as it is bound.

    Attributes:
        name: Its name in the contract.
        stream: The stream of events.
        consumer: The durable consumer.
        concurrency: How many events are handled at once.
        ack_wait: After how many seconds without a word an event comes again.
        backoff: After how many seconds a failed event comes again, the first time and later ones.
    """

    name: str
    stream: str
    consumer: str
    concurrency: int = 1
    ack_wait: float = ACK_WAIT_MS / 1000
    backoff: tuple[float, ...] = tuple(ms / 1000 for ms in BACKOFF_MS)

    @classmethod
    def bound(cls, name: str, declared: Mapping[str, Any], binding: Mapping[str, Any]) -> "Group":
        """The group of a contract's declaration and the authority's binding, which counts."""
        said = {**declared, **binding}
        return cls(
            name,
            binding["stream"],
            binding["consumer"],
            said.get("concurrency", 1),
            said.get("ackWaitMs", ACK_WAIT_MS) / 1000,
            tuple(ms / 1000 for ms in said.get("backoffMs") or BACKOFF_MS),
        )


async def consume(
    link: Link,
    group: Group,
    events: Sequence[Event],
    handler: EventHandler,
    stopping: asyncio.Event,
) -> None:
    """Handle the group's events until `stopping` is set; what is being handled is finished."""
    workers = (_work(link, group, events, handler, stopping) for _ in range(group.concurrency))
    async with asyncio.TaskGroup() as tasks:
        for worker in workers:
            tasks.create_task(worker)


async def _work(
    link: Link,
    group: Group,
    events: Sequence[Event],
    handler: EventHandler,
    stopping: asyncio.Event,
) -> None:
    async with Pull(link, group.stream, group.consumer) as pull:
        while not stopping.is_set():
            msg = await pull.next(stopping)
            if msg is not None:
                await _handle(link, group, events, handler, msg)


async def _handle(
    link: Link, group: Group, events: Sequence[Event], handler: EventHandler, msg: Msg
) -> None:
    with suppress(NatsError):  # the connection is lost, so the event will come again
        try:
            received = read(_event(msg.subject, events), msg)
        except ValidationError as error:
            _log.error("an event breaks its contract", group=group.name, why=str(error))
            await msg.term()
            return
        alive = asyncio.create_task(_keep(msg, group.ack_wait / 3))
        try:
            with tracing.entry(
                "fabric event", received.trace, SpanKind.CONSUMER, surface=received.name
            ):
                await handler(received)
        except Exception as error:  # noqa: BLE001 - a handler's fault sends its event around again
            tries = msg.metadata.num_delivered
            delay = group.backoff[min(tries, len(group.backoff)) - 1]
            _log.warning(
                "an event could not be handled",
                group=group.name,
                event_id=received.id,
                tries=tries,
                again_in=delay,
                exc_info=error,
            )
            await msg.nak(delay)
        else:
            await _acknowledge(link, msg)
        finally:
            alive.cancel()


async def _acknowledge(link: Link, msg: Msg) -> None:
    """Acknowledge until the server confirms it, or seems not to know the delivery any more.

    A word that gets lost would hold up an ordered group for as long as an event may take.
    """
    for _ in range(_CONFIRM_TIMES):
        try:
            await link.inbox.ask(msg.reply, b"+ACK", {}, _CONFIRM_SECONDS)
        except FabricError:
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            return
    _log.warning("an event was handled, and may come again", subject=msg.subject)


def _event(subject: str, events: Sequence[Event]) -> Event:
    event = event_of(subject, events)
    if event is None:
        raise ValidationError(f"no event of the group has the subject {subject[:200]}")
    return event


async def _keep(msg: Msg, every: float) -> None:
    """Tell the server that the event is still being handled."""
    with suppress(NatsError):
        while True:
            await asyncio.sleep(every)
            await msg.in_progress()
