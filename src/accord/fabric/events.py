"""Events: published durably, received live or by a durable consumer group.

A published event is stored when the call returns and is deduplicated by its id. Listening replays
nothing. A group receives every event at least once and in order: a failed event is redelivered
after the group's backoff, one that breaks its contract is dropped.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final

import structlog
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from accord.contracts.manifest import BACKOFF_MS
from accord.fabric.link import TIMEOUT, Backlog, Link, is_jetstream_answer, subscribe
from accord.fabric.rules.errors import DeadlineError, FabricError, UnavailableError, ValidationError
from accord.fabric.rules.terms import (
    Event,
    event_on,
    event_pattern,
    event_subject,
    read_payload,
    write_payload,
)
from accord.fabric.streams import PullReader, append
from accord.kernel import identifiers
from accord.kernel.clock import format_time
from accord.telemetry import tracing
from accord.telemetry.tracing import SpanKind

_log = structlog.stdlib.get_logger(__name__)

EVENT_TIME_HEADER: Final = "Trellis-Event-Time"
EVENT_ID_HEADER: Final = "Nats-Msg-Id"

_PUBLISH_PAUSES: Final = (0.05, 0.1, 0.2, 0.4, 0.8)


async def publish(link: Link, event: Event, payload: Any, *, within: float = TIMEOUT) -> str:
    """Publish an event durably and return its id; raises like `Client.publish`.

    Sending is repeated under the same id while the server is unreachable; it is stored once.
    """
    data = write_payload(event.event, payload, "the event")
    subject = event_subject(event, payload)
    name = link.ids.new()
    # Not the subject: it may contain values of the payload.
    with tracing.span("fabric publish", SpanKind.PRODUCER, surface=event.name):
        headers = {
            EVENT_TIME_HEADER: format_time(link.clock.now(), millis=True),
            identifiers.TRACEPARENT: tracing.traceparent(),
        }
        await _publish_insistently(link, subject, data, headers, name, within)
    return name


async def _publish_insistently(
    link: Link, subject: str, data: bytes, headers: dict[str, str], name: str, within: float
) -> None:
    loop = asyncio.get_running_loop()
    end, attempt = loop.time() + within, 0
    while True:
        try:
            await append(link.inbox, subject, data, headers=headers, message_id=name)
        except (UnavailableError, DeadlineError):
            pause = _PUBLISH_PAUSES[min(attempt, len(_PUBLISH_PAUSES) - 1)]
            if loop.time() + pause >= end:
                raise
            attempt += 1
            await asyncio.sleep(pause)
        else:
            return


@dataclass(frozen=True, slots=True)
class Received:
    """A received event."""

    name: str  # its name in the contract
    payload: Any
    subject: str
    id: str  # stays the same over all deliveries of an event
    time: str  # when it was published, as the publisher wrote it
    trace: identifiers.Trace | None


def read_event(event: Event, msg: Msg) -> Received:
    """The event in a message; raises ValidationError if it breaks the contract."""
    headers = msg.headers or {}
    return Received(
        event.name,
        read_payload(event.event, msg.data, f"the event {event.name}"),
        msg.subject,
        headers.get(EVENT_ID_HEADER, ""),
        headers.get(EVENT_TIME_HEADER, ""),
        identifiers.parse_traceparent(headers.get(identifiers.TRACEPARENT)),
    )


ACK_WAIT_MS: Final = 300_000
_CONFIRM_SECONDS: Final = 2.0
_CONFIRM_TIMES: Final = 3
_PAUSE_SECONDS: Final = 1.0

EventHandler = Callable[[Received], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class ConsumerGroup:
    """A consumer group of a contract with its binding."""

    name: str  # its name in the contract
    stream: str
    consumer: str  # the durable consumer
    concurrency: int = 1  # how many events are handled at once
    # Seconds without an acknowledgement until an event is redelivered.
    ack_wait: float = ACK_WAIT_MS / 1000
    # Seconds until a failed event is redelivered, for each further delivery.
    backoff: tuple[float, ...] = tuple(ms / 1000 for ms in BACKOFF_MS)

    @classmethod
    def bound(
        cls, name: str, declared: Mapping[str, Any], binding: Mapping[str, Any]
    ) -> "ConsumerGroup":
        """The group as declared; values of the authority's binding take precedence."""
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
    group: ConsumerGroup,
    events: Sequence[Event],
    handler: EventHandler,
    stopping: asyncio.Event,
) -> None:
    """Handle the group's events until `stopping` is set; events in progress are finished."""
    workers = (_work(link, group, events, handler, stopping) for _ in range(group.concurrency))
    async with asyncio.TaskGroup() as tasks:
        for worker in workers:
            tasks.create_task(worker)


async def _work(
    link: Link,
    group: ConsumerGroup,
    events: Sequence[Event],
    handler: EventHandler,
    stopping: asyncio.Event,
) -> None:
    async with PullReader(link, group.stream, group.consumer) as pull:
        while not stopping.is_set():
            msg = await pull.next(stopping)
            if msg is not None:
                await _handle_event(link, group, events, handler, msg)


async def _handle_event(
    link: Link, group: ConsumerGroup, events: Sequence[Event], handler: EventHandler, msg: Msg
) -> None:
    with suppress(NatsError):  # connection lost: the event will be redelivered
        try:
            received = read_event(_event(msg.subject, events), msg)
        except ValidationError as error:
            _log.error("an event breaks its contract", group=group.name, why=str(error))
            await msg.term()
            return
        alive = asyncio.create_task(_keep_alive(msg, group.ack_wait / 3))
        try:
            with tracing.incoming_span(
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
    """Acknowledge until the server confirms it or no longer knows the delivery.

    A lost acknowledgement would block an ordered group for the whole `ack_wait`.
    """
    for _ in range(_CONFIRM_TIMES):
        try:
            await link.inbox.ask(msg.reply, b"+ACK", {}, _CONFIRM_SECONDS)
        except FabricError:
            await asyncio.sleep(_PAUSE_SECONDS)
        else:
            return
    _log.warning(
        "an event was handled but not acknowledged, so it may be redelivered", subject=msg.subject
    )


def _event(subject: str, events: Sequence[Event]) -> Event:
    event = event_on(subject, events)
    if event is None:
        raise ValidationError(f"no event of the group has the subject {subject[:200]}")
    return event


async def _keep_alive(msg: Msg, every: float) -> None:
    """Tell the server periodically that the event is still being handled."""
    with suppress(NatsError):
        while True:
            await asyncio.sleep(every)
            await msg.in_progress()


@asynccontextmanager
async def listen(
    link: Link, event: Event, *, where: Mapping[str, str | int | float] | None = None
) -> AsyncIterator[AsyncIterator[Received]]:
    """Receive every event while the block runs; events that break the contract are only logged.

    `where` are values by pointer of the event's subject. Raises UnauthorizedError if the session
    may not subscribe, also from reading when the grant is lost.
    """
    subject = event_pattern(event, where)
    backlog = Backlog(subject)

    def heard(msg: Msg) -> None:
        if not is_jetstream_answer(msg):
            backlog.put(msg)

    async def events() -> AsyncIterator[Received]:
        while True:
            msg = await backlog.get()
            try:
                received = read_event(event, msg)
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
