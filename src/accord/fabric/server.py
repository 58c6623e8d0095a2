"""RPCs and feeds: signed requests that are answered once, or by a stream.

The first frame of a feed is empty with `feed-status: ready`, the last one has `end`. In between the
service sends `keepalive` with a reply subject, so that the server reports when nobody listens any
more. `Server` needs only a connection and a way to resolve callers, so the authority's own services
use it, too.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Final, Self, TypeVar

import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError

from accord.contracts.authoring import Contract
from accord.fabric.answers import Answers
from accord.fabric.journal import NO_PAYLOAD, CallJournal
from accord.fabric.link import TIMEOUT, Link
from accord.fabric.requests import Callers, HandleRequest, Request, RequestDispatcher, Resolve
from accord.fabric.rules.errors import DeadlineError, FabricError, UnavailableError, ValidationError
from accord.fabric.rules.terms import (
    Feed,
    Manifest,
    Rpc,
    Terms,
    missing_surface,
    read_payload,
    write_payload,
)
from accord.kernel import canonical
from accord.kernel.clock import Clock, SystemClock
from accord.kernel.identifiers import UlidSource

RpcHandler = Callable[[Request, Any], Awaitable[Any]]

_log = structlog.stdlib.get_logger(__name__)


def serve_rpc(
    dispatcher: RequestDispatcher,
    rpc: Rpc,
    handler: RpcHandler,
    calls: CallJournal | None,
    deadline: float,
    answers: Answers | None = None,
) -> HandleRequest:
    """The request handler of an RPC; `deadline` is in seconds.

    Without `answers`, requests with an idempotency key are refused.
    """
    gate, what = rpc.gates["call"], f"call {rpc.name}"

    async def run(request: Request, asked: Any) -> Any:
        answered = await _within(deadline, handler(request, asked))
        _written(rpc, answered)
        return answered

    async def run_once(request: Request, asked: Any) -> Any:
        if answers is None:
            raise ValidationError(f"{rpc.name} keeps no answers by idempotency key")
        return await answers.once(request, rpc, asked, partial(run, request, asked))

    async def answer(request: Request, msg: Msg) -> None:
        asked: Any = NO_PAYLOAD
        try:
            request.who.require(gate, what)
            asked = read_payload(rpc.input, msg.data, "the request")
            if request.key is None:
                answered = await _within(deadline, handler(request, asked))
            else:
                answered = await run_once(request, asked)
            data = _written(rpc, answered)
        except Exception as error:
            kind = FabricError.type
            if isinstance(error, FabricError):
                kind = error.type
                _check_declared(rpc, error)
            if calls is not None:
                await _record(calls, rpc.name, request, asked, error=kind)
            raise
        if calls is not None:
            await _record(calls, rpc.name, request, asked, answered)
        await dispatcher.answer(msg, data)

    return answer


async def _record(
    calls: CallJournal,
    name: str,
    request: Request,
    asked: Any,
    answered: Any = NO_PAYLOAD,
    error: str | None = None,
) -> None:
    """Record input and output; an error is that of the input if it could not be read."""
    of: dict[str, Any] = {"caller": request.who, "request_id": request.id}
    part = "input"
    if asked is not NO_PAYLOAD:
        await calls.record("rpc", name, part, payload=asked, **of)
        part = "output"
    await calls.record("rpc", name, part, payload=answered, error=error, since=request.at, **of)


def _written(rpc: Rpc, answered: Any) -> bytes:
    """The answer's bytes; an invalid answer is the service's fault, not the caller's."""
    try:
        return write_payload(rpc.output, answered, "the answer")
    except ValidationError as error:
        _log.error("a handler's answer breaks its contract", rpc=rpc.name, issues=error.issues[:5])
        raise FabricError("the service's answer does not keep the contract") from error


async def _within(seconds: float, answer: Awaitable[Any]) -> Any:
    # What `asyncio.timeout` does, at half its price: every request pays for it.
    task = asyncio.current_task()
    assert task is not None
    expired = False

    def expire() -> None:
        nonlocal expired
        expired = True
        task.cancel()

    cancelled = task.cancelling()
    timer = asyncio.get_running_loop().call_later(seconds, expire)
    try:
        return await answer
    except asyncio.CancelledError:
        if expired and task.uncancel() <= cancelled:
            raise DeadlineError("the service took too long to answer") from None
        raise
    finally:
        timer.cancel()


def _check_declared(rpc: Rpc, error: FabricError) -> None:
    """Log a declared error that breaks its schema; it is sent all the same."""
    schema = rpc.errors.get(error.type)
    if schema is None:
        return
    try:
        said = canonical.decode(canonical.encode(error.members() | {"id": "0"}))
    except canonical.CanonicalError:
        said = None
    if not schema.is_valid(said):
        _log.error("a handler's error breaks its schema", rpc=rpc.name, type=error.type)


async def call(
    link: Link, rpc: Rpc, payload: Any, *, within: float = TIMEOUT, key: str | None = None
) -> Any:
    """Call an RPC and return the answer's payload; raises like `Client.call`."""
    data = write_payload(rpc.input, payload, "the request")
    msg = await link.request(rpc.subject, data, within, key)
    return read_payload(rpc.output, msg.data, "the answer")


STATUS: Final = "feed-status"
READY: Final = "ready"
ALIVE: Final = "keepalive"
END: Final = "end"

KEEPALIVE_SECONDS: Final = 15.0
_SILENCE: Final = 3 * KEEPALIVE_SECONDS
_PROBE_SECONDS: Final = 1.0

FeedHandler = Callable[[Request, Any], AsyncIterator[Any]]


async def open_feed(
    link: Link, feed: Feed, payload: Any, *, within: float = TIMEOUT
) -> AsyncIterator[Any]:
    """Open a feed and yield its payloads; raises FabricError if it is refused or breaks off."""
    data = write_payload(feed.input, payload, "the request")
    async with link.stream(feed.subject, data) as frames:
        status = (await _next(frames, within, feed)).headers or {}
        if status.get(STATUS) != READY:
            raise FabricError("the feed does not begin with its first frame", where=feed.subject)
        while True:
            msg = await _next(frames, _SILENCE, feed)
            status = msg.headers or {}
            if status.get(STATUS) == END:
                return
            if status.get(STATUS) != ALIVE:
                yield read_payload(feed.event, msg.data, "what the feed sent")


async def _next(frames: AsyncIterator[Msg], seconds: float, feed: Feed) -> Msg:
    try:
        return await asyncio.wait_for(anext(frames), seconds)
    except TimeoutError:
        raise DeadlineError(
            f"nothing came from the feed within {seconds:g} seconds", where=feed.subject
        ) from None


def serve_feed(
    dispatcher: RequestDispatcher, feed: Feed, handler: FeedHandler, calls: CallJournal | None
) -> HandleRequest:
    """The request handler of a feed."""

    async def serve(request: Request, msg: Msg) -> None:
        asked: Any = NO_PAYLOAD
        error: FabricError | None = None
        try:
            request.who.require(feed.gates["subscribe"], f"subscribe to {feed.name}")
            asked = read_payload(feed.input, msg.data, "the request")
        except FabricError as refusal:
            error = refusal
            raise
        finally:
            if calls is not None:
                await calls.record(
                    *("feeds", feed.name, "input"),
                    caller=request.who,
                    request_id=request.id,
                    payload=asked,
                    error=None if error is None else error.type,
                )
        await dispatcher.answer(msg, b"", {STATUS: READY})
        values = _journaled(calls, feed, request, handler(request, asked))
        await _while_read(dispatcher, msg, _pump(dispatcher, msg, feed, values))
        await dispatcher.answer(msg, b"", {STATUS: END})

    return serve


async def _journaled(
    calls: CallJournal | None, feed: Feed, request: Request, values: AsyncIterator[Any]
) -> AsyncIterator[Any]:
    """The values of a feed, each journaled after it was sent."""
    async with aclosing(values) as stream:  # type: ignore[type-var]
        async for value in stream:
            yield value
            if calls is not None:
                await calls.record(
                    *("feeds", feed.name, "event"),
                    caller=request.who,
                    request_id=request.id,
                    payload=value,
                )


async def _pump(
    dispatcher: RequestDispatcher, msg: Msg, feed: Feed, values: AsyncIterator[Any]
) -> None:
    async with aclosing(values) as stream:  # type: ignore[type-var]
        async for value in stream:
            try:
                data = write_payload(feed.event, value, "what the feed sends")
            except FabricError as error:
                raise FabricError(f"the service breaks its contract: {error}") from error
            await dispatcher.answer(msg, data)


async def _while_read(dispatcher: RequestDispatcher, msg: Msg, pumping: Awaitable[None]) -> None:
    """Run a stream to its end, or until nobody reads it."""
    pump = asyncio.ensure_future(pumping)
    try:
        while not (await asyncio.wait({pump}, timeout=KEEPALIVE_SECONDS))[0]:
            if not await _is_read(dispatcher, msg):
                return
        pump.result()
    except asyncio.CancelledError:
        await dispatcher.refuse(msg, UnavailableError("the service is ending", mend="ask again"))
        raise
    finally:
        pump.cancel()
        with suppress(asyncio.CancelledError, FabricError):
            await pump


async def _is_read(dispatcher: RequestDispatcher, msg: Msg) -> bool:
    """Whether somebody subscribes to the reply subject; readers themselves do not answer."""
    try:
        await dispatcher.nats.request(msg.reply, timeout=_PROBE_SECONDS, headers={STATUS: ALIVE})
    except NoRespondersError:
        return False
    except NatsError:
        return True
    return True


ANSWER_SECONDS: Final = 30.0
"""Default number of seconds that a handler may take."""

H = TypeVar("H", bound=RpcHandler)
F = TypeVar("F", bound=FeedHandler)


def bind_handler(
    terms: Terms, section: str, name: str, handlers: dict[str, Any]
) -> Callable[[Any], Any]:
    """A decorator that registers the handler of a surface; NotFoundError if there is none."""
    if name not in terms.manifest.get(section, {}):
        raise missing_surface(terms.id, section, name)

    def bind(handler: Any) -> Any:
        handlers[name] = handler
        return handler

    return bind


class Server:
    """Serves one contract while it is entered.

        server = Server(connection, contract, resolve)

        @server.rpc("User.Find")
        async def find(request, payload):
            return {"id": payload["id"]}

        async with server:
            ...

    An RPC handler may take `deadline` seconds; `most` requests run at once.
    """

    def __init__(
        self,
        nats: Client,
        contract: Manifest | Contract | Terms,
        resolve: Resolve | Callers,
        *,
        clock: Clock | None = None,
        ids: UlidSource | None = None,
        calls: CallJournal | None = None,
        deadline: float = ANSWER_SECONDS,
        most: int = 1000,
        answers: Answers | None = None,
    ) -> None:
        clock = clock or SystemClock()
        self.terms = contract if isinstance(contract, Terms) else Terms(contract)
        self.callers = resolve if isinstance(resolve, Callers) else Callers(resolve, clock)
        self.dispatcher = RequestDispatcher(
            nats,
            self.callers,
            queue=self.terms.id,
            clock=clock,
            ids=ids or UlidSource(clock),
            most=most,
        )
        self._calls = calls
        self._deadline = deadline
        self._answers = answers
        self._once: set[str] = set()
        self._rpc: dict[str, RpcHandler] = {}
        self._feeds: dict[str, FeedHandler] = {}

    def rpc(self, name: str, *, once: bool = False) -> Callable[[H], H]:
        """Register the handler of an RPC; raises NotFoundError if the contract has no such RPC.

        With `once` it keeps its answers by idempotency key.
        """
        if once:
            self._once.add(name)
        return bind_handler(self.terms, "rpc", name, self._rpc)

    def feed(self, name: str) -> Callable[[F], F]:
        """Register an async generator for a feed; raises NotFoundError if there is no such feed."""
        return bind_handler(self.terms, "feeds", name, self._feeds)

    async def __aenter__(self) -> Self:
        for name, handler in self._rpc.items():
            rpc = self.terms.rpc[name]
            answers = self._answers if name in self._once else None
            answer = serve_rpc(self.dispatcher, rpc, handler, self._calls, self._deadline, answers)
            await self.dispatcher.serve(rpc.subject, answer)
        for name, stream in self._feeds.items():
            feed = self.terms.feeds[name]
            await self.dispatcher.serve(
                feed.subject, serve_feed(self.dispatcher, feed, stream, self._calls), endless=True
            )
        await self.dispatcher.nats.flush()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.dispatcher.drain()
