"""`GET /pubsub/v1/subscribe`: a topic by long-poll, or as server-sent events.

Owns the two forms and how many may listen at once. What is told, and to whom, is for `topics`.
A long-poll's answer is signed like any other. The messages of an event stream are not signed by
this node: each is an event or a manifest that its author signed.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from accord.community.bus.answering import Signer, Visit
from accord.community.bus.checks import check_membership
from accord.community.bus.door import Guest
from accord.community.bus.presence import GoneError, while_present
from accord.community.bus.settings import BusSettings
from accord.community.bus.topics import Listener, Topics, check_listener
from accord.community.envelope import headers
from accord.community.errors import Code, CommunityError

MAX_SECONDS: Final = 60
DEFAULT_SECONDS: Final = 30
_KEEP_ALIVE_SECONDS: Final = 15.0
_PARAMETERS: Final = frozenset({"topic", "last_seq", "timeout"})
_PER_CALLER: Final = 64


class Subscribing:
    """Serves those who listen."""

    def __init__(self, topics: Topics, signer: Signer, settings: BusSettings) -> None:
        self._topics = topics
        self._signer = signer
        self._settings = settings
        self._listening: Counter[str] = Counter()

    @property
    def listening(self) -> int:
        """How many subscriptions there are."""
        return self._listening.total()

    async def serve(self, http: HttpRequest, guest: Guest, visit: Visit) -> Response:
        """Answer a subscription.

        Raises:
            CommunityError: The question is malformed, the topic unknown or not for this caller, or
                too many listen.
        """
        query = http.query_params.multi_items()
        asked = dict(query)
        if len(asked) != len(query) or not asked.keys() <= _PARAMETERS or "topic" not in asked:
            raise CommunityError(
                Code.BAD_REQUEST, "expected topic and, if wanted, last_seq and timeout, each once"
            )
        topic = asked["topic"]
        _check(topic, guest)
        seconds = _number(asked, "timeout", DEFAULT_SECONDS, MAX_SECONDS)
        community = guest.request.community
        last_seq = _number(
            asked, "last_seq", self._topics.last_seq(topic, community=community), 2**53 - 1
        )
        if "text/event-stream" in http.headers.get("accept", ""):
            return self._events(topic, last_seq, guest)
        with self._counted(guest.request.caller):
            body = await while_present(http.receive, self._poll(topic, last_seq, guest, seconds))
        return self._signer.answer(visit, body).response()

    async def _poll(
        self, topic: str, last_seq: int, guest: Guest, seconds: float
    ) -> dict[str, Any]:
        found = await self._topics.following(
            topic, last_seq, community=guest.request.community, timeout_seconds=seconds
        )
        _check(topic, guest)
        if not found:
            return {"timeout": True}
        return {
            "topic": topic,
            "messages": [{"seq": message.seq, "data": message.data} for message in found],
            "last_seq": found[-1].seq,
            "missed": 0 < last_seq < found[0].seq - 1,
        }

    def _events(self, topic: str, last_seq: int, guest: Guest) -> Response:
        named = {headers.REQUEST_ID: guest.request.request_id, headers.FROM: self._signer.node_id}

        async def tell(say: Callable[[bytes], Awaitable[None]]) -> None:
            seq = last_seq
            await say(b": listening\n\n")
            while True:
                found = await self._topics.following(
                    topic,
                    seq,
                    community=guest.request.community,
                    timeout_seconds=_KEEP_ALIVE_SECONDS,
                )
                _check(topic, guest)
                if not found:
                    await say(b": here\n\n")
                for message in found:
                    seq = message.seq
                    await say(b"event: message\nid: %d\ndata: %s\n\n" % (seq, message.text))

        counted = self._counted(guest.request.caller)
        return _Events(tell, named, counted, self._settings.stall_seconds)

    @contextmanager
    def _counted(self, caller: str) -> Iterator[None]:
        most = self._settings.max_listeners
        if self.listening >= most or self._listening[caller] >= max(1, most // _PER_CALLER):
            raise CommunityError(
                Code.CAPACITY_EXCEEDED,
                "too many subscriptions are open",
                details={"retry_after_ms": 5000},
            )
        self._listening[caller] += 1
        try:
            yield
        finally:
            self._listening[caller] -= 1
            if not self._listening[caller]:
                del self._listening[caller]


class _Events(Response):
    """A stream of messages, until the listener leaves or may hear no more."""

    def __init__(
        self,
        tell: Callable[[Callable[[bytes], Awaitable[None]]], Coroutine[Any, Any, None]],
        named: dict[str, str],
        counted: AbstractContextManager[None],
        stall_seconds: float,
    ) -> None:
        super().__init__(headers=named, media_type="text/event-stream")
        del self.headers["content-length"]
        self._tell = tell
        self._counted = counted
        self._stall_seconds = stall_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def say(text: bytes, *, more: bool = True) -> None:
            async with asyncio.timeout(self._stall_seconds):
                await send({"type": "http.response.body", "body": text, "more_body": more})

        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        with self._counted, suppress(GoneError, TimeoutError):
            await send(start)
            with suppress(CommunityError):  # it may not hear this any more
                await while_present(receive, self._tell(say))
            await say(b"", more=False)


def _check(topic: str, guest: Guest) -> None:
    """Check that the caller may hear the topic, as the community stands now."""
    _, level = check_membership(guest.commons, guest.request.caller)
    check_listener(topic, Listener(guest.request.caller, level, guest.own))


def _number(asked: dict[str, str], name: str, default: int, most: int) -> int:
    text = asked.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 16 and int(text) <= most):
        raise CommunityError(
            Code.BAD_REQUEST, f"expected a whole number from 0 to {most}", where=name
        )
    return int(text)
