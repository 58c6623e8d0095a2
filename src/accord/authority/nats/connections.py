"""The connections of sessions: seen, counted, and ended when what was given to them is gone.

Owns the list of connections, as the servers tell of them on the system account. The authority
hears of a session's first connection and of the end of its last. Whenever the authority changes,
every connection is judged anew: one that holds more than it would be given now is ended, so that
it comes again and is given less, or nothing. It grants nothing.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final, Protocol

import orjson
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError

from accord.authority.errors import AuthorityError, Code
from accord.authority.ledger import Changes
from accord.authority.nats.admission import Permissions, refusal
from accord.authority.nats.advisories import Change, Connection, read_advisory
from accord.authority.nats.cluster import Cluster, Credentials
from accord.authority.nats.connecting import connect
from accord.authority.nats.issued import Issued
from accord.authority.nats.listing import listed
from accord.authority.nats.roster import Place, Roster, place
from accord.contracts import Grants
from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError

_log = structlog.stdlib.get_logger(__name__)

_ROLL_CALL_SECONDS: Final = 10.0
_ANSWER_SECONDS: Final = 2.0
_JUDGE_SECONDS: Final = 0.25
_JUDGE_EVERY: Final = 60.0
# Judging takes at most a fifth of the time, however many connections there are.
_REST: Final = 4.0
_MOST_NEWS: Final = 10_000

Tell = Callable[[Change, Connection, str | None], Awaitable[None]]
News = tuple[Change, Connection, str | None]


class Watched(Protocol):
    """What the watch asks and tells the authority."""

    @property
    def changes(self) -> Changes:
        """Fires when what somebody would be granted may have changed."""
        ...

    async def grants(self, key: str, digest: str) -> Grants:
        """What a session may touch under a contract; raises `AuthorityError` to refuse it."""
        ...

    async def connected(self, key: str, digest: str) -> object:
        """A session has a connection under a contract."""
        ...

    async def disconnected(self, key: str, digest: str) -> None:
        """A session has no connection under that contract any more."""
        ...


async def _tell_nobody(_: Change, __: Connection, ___: str | None) -> None:
    return


class Connections:
    """Watches the connections of a system.

    Args:
        authority: Who says what is granted, and hears who is there.
        cluster: The system; it must have a user of the system account.
        clock: Where the time comes from.
        issued: What the callout gave.
        tell: Hears of every connection that comes, goes, or is ended (with who or what ended it).

    Raises:
        AuthorityError: There is no user of the system account.
    """

    def __init__(
        self,
        authority: Watched,
        cluster: Cluster,
        clock: Clock,
        issued: Issued,
        *,
        tell: Tell = _tell_nobody,
    ) -> None:
        if cluster.system is None:
            raise AuthorityError(
                Code.BAD_REQUEST,
                "connections cannot be watched without a user of the system account",
                mend="add system.creds to the credentials of the NATS system",
            )
        self._system: Credentials = cluster.system
        self._authority = authority
        self._cluster = cluster
        self._clock = clock
        self._issued = issued
        self._tell = tell
        self._roster = Roster()
        self._gone: set[Place] = set()
        self._nats: Client | None = None
        self._called = asyncio.Event()
        self._news: asyncio.Queue[News] = asyncio.Queue(_MOST_NEWS)
        self._judged = asyncio.Event()

    def held(self) -> tuple[Connection, ...]:
        """The connections that are there, in the order in which they were seen."""
        return self._roster.all()

    def is_connected(self, key: str) -> bool:
        """Whether a session has a connection."""
        return self._roster.has_session(key)

    async def kick(self, key: str, by: str) -> int:
        """End every connection of a session, which may come again; how many there were."""
        ended = self._roster.of_session(key)
        for connection in ended:
            await self._end(connection, by)
        return len(ended)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch until the block ends; at its beginning every connection is known.

        Raises:
            AuthorityError: The server does not let the authority in.
        """

        async def back() -> None:
            self._called.set()

        self._nats = await connect(
            "watch connections", self._cluster, self._system, reconnected_cb=back
        )
        try:
            await self._nats.subscribe(f"$SYS.ACCOUNT.{self._cluster.account}.*", cb=self._hear)
            await self._nats.flush()
            await self._roll_call()
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(work, name=name)
                    for name, work in (
                        ("call the roll of connections", self._calling()),
                        ("hear the authority change", self._hearing_changes()),
                        ("judge connections", self._judging()),
                        ("tell of connections", self._telling()),
                    )
                ]
                yield
                for task in tasks:
                    task.cancel()
        finally:
            await self._nats.close()

    async def _hear(self, message: Msg) -> None:
        advisory = read_advisory(message.subject, message.data)
        if advisory is None:
            return
        change, connection = advisory
        if change is Change.OPENED:
            await self._open(connection)
        else:
            await self._close(connection)

    async def _open(self, connection: Connection) -> None:
        if place(connection) in self._roster:
            return
        admitted = connection.admitted
        if self._roster.add(connection):
            await self._report(self._authority.connected(admitted.key, admitted.digest))
        self._note(Change.OPENED, connection)

    async def _close(self, connection: Connection) -> None:
        self._gone.add(place(connection))
        removed = self._roster.remove(place(connection))
        if removed is None:
            return
        gone, is_last = removed
        if is_last:
            await self._report(
                self._authority.disconnected(gone.admitted.key, gone.admitted.digest)
            )
        self._note(Change.CLOSED, gone)

    def _note(self, change: Change, connection: Connection, by: str | None = None) -> None:
        try:
            self._news.put_nowait((change, connection, by))
        except asyncio.QueueFull:
            _log.warning("a connection is not told of: too many come and go", change=change.value)

    async def _telling(self) -> None:
        """Tell what was noted; whoever listens slowly, or fails, holds up nobody else."""
        while True:
            change, connection, by = await self._news.get()
            try:
                await self._tell(change, connection, by)
            except (AccordError, NatsError, OSError) as error:
                _log.warning("a connection was not told of", change=change.value, why=str(error))

    async def _report(self, told: Awaitable[object]) -> None:
        try:
            await told
        except AccordError as error:
            # The next roll call finds the same connections; the offer lives by its heartbeats.
            _log.warning("the authority did not hear of a connection", why=str(error))

    async def _calling(self) -> None:
        """Call the roll now and then, and when the connection to the server is back."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ROLL_CALL_SECONDS):
                    await self._called.wait()
            self._called.clear()
            try:
                await self._roll_call()
            except (NatsError, OSError, TimeoutError) as error:
                _log.warning("the roll of connections was not called", why=repr(error))

    async def _roll_call(self) -> None:
        """Make the list what the servers say; advisories may have been lost."""
        assert self._nats is not None
        before = self._roster.all()
        self._gone.clear()
        present = await listed(self._nats, self._cluster.account)
        places = {place(connection) for connection in present}
        for connection in before:
            if place(connection) not in places:
                await self._close(connection)
        for connection in present:
            if place(connection) not in self._gone and place(connection) not in self._roster:
                await self._open(connection)
                self._judged.set()

    async def _hearing_changes(self) -> None:
        changes = self._authority.changes
        count = changes.count
        while True:
            count = await changes.after(count)
            self._judged.set()

    async def _judging(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_JUDGE_EVERY):
                    await self._judged.wait()
            self._judged.clear()
            begun = self._clock.monotonic()
            await self._judge()
            spent = self._clock.monotonic() - begun
            await asyncio.sleep(max(_JUDGE_SECONDS, _REST * spent))

    async def _judge(self) -> None:
        """End every connection that holds more than it would be given now."""
        for connection in self._roster.all():
            why = await self._excess(connection)
            if why is not None and place(connection) in self._roster:
                await self._end(connection, why)

    async def _excess(self, connection: Connection) -> str | None:
        admitted = connection.admitted
        try:
            grants = await self._authority.grants(admitted.key, admitted.digest)
            if not grants.ok:
                raise refusal(grants)
        except AccordError as error:
            if isinstance(error, AuthorityError) and error.code is not Code.UNAVAILABLE:
                return str(error)
            # The store is away: nothing is known to have been taken back.
            _log.warning("a connection could not be judged", why=str(error))
            return None
        if not self._issued.stands(admitted.fingerprint, Permissions.of(grants)):
            return "something that it was granted was taken back"
        return None

    async def _end(self, connection: Connection, by: str) -> None:
        assert self._nats is not None
        _log.info("connection ended", session=connection.admitted.key, host=connection.host, by=by)
        try:
            await self._nats.request(
                f"$SYS.REQ.SERVER.{connection.server}.KICK",
                orjson.dumps({"cid": connection.client}),
                timeout=_ANSWER_SECONDS,
            )
        except NatsError as error:
            _log.warning("a connection was not ended", why=repr(error), by=by)
            self._judged.set()
            return
        self._note(Change.KICKED, connection, by)
