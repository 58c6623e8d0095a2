"""Events for nodes that know only the seed's sync: `GET /sync/v1/heads`, `POST /sync/v1/events`.

Such a node tells its greatest lamport and takes events above it. That alone would never bring it
events that were written at the same time elsewhere, so whatever arrived here since the last push is
sent as well. What such a node has for others it pushes itself.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cachetools import LRUCache
from sqlalchemy import Connection

from accord.community.dialler import Dialler, Link
from accord.community.errors import bad_request
from accord.community.log import EventLog
from accord.community.store import events_for_seed, last_arrival
from accord.community.sync import SyncResult
from accord.kernel import canonical

HEADS: Final = "/sync/v1/heads"
EVENTS: Final = "/sync/v1/events"

PUSH_BYTES: Final = 1024 * 1024
"""About how many bytes of events one request has."""

OVERLAP: Final = 256
"""How many lamports below its head a node is sent at the first push after a start."""

_REMEMBERED: Final = 4096


@dataclass(slots=True, eq=False)
class SeedPeers:
    """What nodes that know only the seed have been sent."""

    dialler: Dialler
    _sent: LRUCache[tuple[str, str], int] = field(
        default_factory=lambda: LRUCache(_REMEMBERED), init=False
    )

    async def push(self, link: Link, log: EventLog) -> SyncResult:
        """Send a node what it lacks.

        What was sent before is not sent again, unless this node restarts. Raises what `Dialler.ask`
        raises, and `bad_request` for a malformed answer.
        """
        key = log.community_id, link.client.node_id
        heads = await self.dialler.ask(link, "GET", HEADS)
        head = heads.get(log.community_id, -1) if isinstance(heads, dict) else None
        if type(head) is not int:
            raise bad_request("the heads are not a lamport for each community", where=HEADS)
        since = self._sent.get(key)
        number = log.number
        above = head if since is not None else head - OVERLAP
        latest = await log.store.read(lambda c: last_arrival(c, number))
        rounds = sent = 0
        after = None
        while True:

            def read(connection: Connection, after: Any = after) -> tuple[list[bytes], Any]:
                return _page(events_for_seed(connection, number, above, since, after))

            raws, after = await log.store.read(read)
            if not raws:
                break
            body = {"events": [canonical.decode(raw) for raw in raws]}
            answer = await self.dialler.ask(link, "POST", EVENTS, body)
            if not isinstance(answer, Mapping) or "accepted" not in answer:
                raise bad_request("the answer does not say what was accepted", where=EVENTS)
            rounds, sent = rounds + 1, sent + sum(map(len, raws))
        self._sent[key] = latest
        return SyncResult(rounds=rounds, sent_bytes=sent)


def _page(found: Iterator[tuple[Any, bytes]]) -> tuple[list[bytes], Any]:
    raws: list[bytes] = []
    size, last = 0, None
    for position, raw in found:
        raws.append(raw)
        last = position
        size += len(raw)
        if size >= PUSH_BYTES:
            break
    return raws, last
