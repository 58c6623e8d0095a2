"""One meeting of two nodes: from whatever each has to the same.

Owns the session on the side that asks. Events that come are in the log, on disk, before the next
request; a meeting that breaks off loses nothing, and the next one goes on from there.
"""

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from accord.community.client import Client
from accord.community.errors import CommunityError
from accord.community.log import Log, News
from accord.community.log.upkeep import receive_stubs
from accord.community.reconcile import SALT_BYTES, Body, Fetch, Initiator, Item
from accord.community.sync.holdings import Holdings

T = TypeVar("T")

RECONCILE: Final = "/sync/v1/reconcile"


@dataclass(frozen=True, slots=True)
class Met:
    """What a meeting came to.

    Attributes:
        received: Events that were new here.
        rejected: Events that the log did not take.
        rounds: Round trips.
        sent_bytes: Bytes of all requests.
        received_bytes: Bytes of all replies.
    """

    received: int = 0
    rejected: int = 0
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
    arrived: list[Item] = []

    def note(news: News) -> None:
        arrived.extend(news.arrived)

    end = log.subscribe(note)
    received = rejected = sent_bytes = received_bytes = 0
    stubs: list[bytes] = []
    index = holdings.index()
    fetching = _Fetching()
    session = Initiator(index, secrets.token_bytes(SALT_BYTES), fetching)
    try:
        while (request := await fetching.during(holdings, session.request)) is not None:
            reply = await client.post_bytes(RECONCILE, request)
            sent_bytes += len(request)
            received_bytes += len(reply)
            found = await asyncio.to_thread(session.receive, reply)
            receipt = await log.receive([body.raw for body in found if not body.is_stub])
            stubs += (body.raw for body in found if body.is_stub)
            received += receipt.accepted
            rejected += len(receipt.rejected)
            index.insert(arrived)
            arrived.clear()
        await take_stubs(log, stubs)
    finally:
        end()
    return Met(received, rejected, session.rounds, sent_bytes, received_bytes)


async def take_stubs(log: Log, raws: list[bytes]) -> int:
    """Take the stubs that a retention floor vouches for; those that none does are left.

    Returns:
        How many were new.
    """
    taken = 0
    for raw in raws:
        # One by one: a stub that nothing vouches for must not hinder the others.
        with contextlib.suppress(CommunityError):
            taken += await receive_stubs(log, [raw])
    return taken


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
