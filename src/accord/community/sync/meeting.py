"""One meeting of two nodes: from whatever each has to the same.

Owns the session on the side that asks. Events that come are in the log, on disk, before the next
request; a meeting that breaks off loses nothing, and the next one goes on from there.
"""

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from accord.community.client import Client
from accord.community.errors import CommunityError
from accord.community.log import Log, News, Receipt
from accord.community.log.upkeep import receive_stubs
from accord.community.reconcile import SALT_BYTES, Body, Fetch, Index, Initiator, Item
from accord.community.sync.holdings import Holdings

T = TypeVar("T")

# Replies that are verified and stored while the next one travels.
_UNDER_WAY: Final = 2

RECONCILE: Final = "/sync/v1/reconcile"
SNAPSHOT: Final = "/sync/v1/snapshot"


@dataclass(frozen=True, slots=True)
class Met:
    """What a meeting came to.

    Attributes:
        received: Events that were new here.
        rejected: Events that the log did not take.
        lacking: Events that the other node has pruned and this log never had.
        rounds: Round trips.
        sent_bytes: Bytes of all requests.
        received_bytes: Bytes of all replies.
    """

    received: int = 0
    rejected: int = 0
    lacking: int = 0
    rounds: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0


async def meet(client: Client, holdings: Holdings) -> Met:
    """Reconcile with the node that a client speaks with.

    Raises:
        CommunityError: The node refuses, cannot be reached, or does not keep the protocol; what
            arrived before that is in the log.
    """
    log = holdings.log
    index = holdings.index()
    taking = _Taking(log, index)
    fetching = _Fetching()
    session = Initiator(index, secrets.token_bytes(SALT_BYTES), fetching)
    sent_bytes = received_bytes = 0
    try:
        while (request := await fetching.during(holdings, session.request)) is not None:
            reply = await client.post_bytes(RECONCILE, request)
            sent_bytes += len(request)
            received_bytes += len(reply)
            await taking.take(await asyncio.to_thread(session.receive, reply))
        await taking.finish()
    finally:
        taking.close()
    return Met(
        taking.received,
        taking.rejected,
        taking.lacking,
        session.rounds,
        sent_bytes,
        received_bytes,
    )


async def take_stubs(log: Log, raws: list[bytes]) -> int:
    """Take the stubs that a retention floor vouches for.

    Returns:
        How many none vouches for: this log lacks what others have pruned.
    """
    left = 0
    for raw in raws:
        # One by one: a stub that nothing vouches for must not hinder the others.
        try:
            await receive_stubs(log, [raw])
        except CommunityError:
            left += 1
    return left


class _Taking:
    """What comes with replies, on its way into the log while the next is asked for."""

    def __init__(self, log: Log, index: Index) -> None:
        self.received = 0
        self.rejected = 0
        self.lacking = 0
        self._log = log
        self._index = index
        self._arrived: list[Item] = []
        self._stubs: list[bytes] = []
        self._under_way: deque[asyncio.Task[Receipt]] = deque()
        self._end = log.subscribe(self._note)

    async def take(self, bodies: Sequence[Body]) -> None:
        """Begin to take what came with a reply; waits only when too much is under way."""
        self._stubs += (body.raw for body in bodies if body.is_stub)
        raws = [body.raw for body in bodies if not body.is_stub]
        if raws:
            self._under_way.append(asyncio.create_task(self._log.receive(raws)))
        await self._settle(_UNDER_WAY)

    async def finish(self) -> None:
        """Wait until everything is in the log, and take the stubs that it then vouches for."""
        await self._settle(0)
        self.lacking = await take_stubs(self._log, self._stubs)

    def close(self) -> None:
        """Follow the log no more; what is under way is finished by the log itself."""
        self._end()
        for task in self._under_way:
            task.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _settle(self, most: int) -> None:
        while len(self._under_way) > most:
            receipt = await self._under_way[0]
            self._under_way.popleft()
            self.received += receipt.accepted
            self.rejected += len(receipt.rejected)
        self._index.insert(self._arrived)
        self._arrived = []

    def _note(self, news: News) -> None:
        self._arrived += news.arrived


class _Fetching:
    """The bodies for a session, which outlives the connections that they come from."""

    def __init__(self) -> None:
        self._fetch: Fetch | None = None

    def __call__(self, wanted: Sequence[Item]) -> Iterable[Body | None]:
        assert self._fetch is not None
        return self._fetch(wanted)

    async def during(self, holdings: Holdings, step: Callable[[], T]) -> T:
        """Run a step of the session with a connection."""

        def work(fetch: Fetch) -> T:
            self._fetch = fetch
            return step()

        return await holdings.with_bodies(work)
