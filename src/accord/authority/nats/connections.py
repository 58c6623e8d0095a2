"""Connections of sessions: admitted, listed, and ended when their grants are gone; heartbeats.

The authority is told of a session's first connection and of the end of its last. After every change
of the authority each connection is checked: one with more permissions than it would get now is
ended. Without a user of the system account connections can be neither listed nor ended; then the
server ends each after a few minutes, and those still admitted reconnect.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final, Protocol

import orjson
import structlog
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError

from accord.authority.nats.accounts import Cluster, Credentials, connect, find_account_fault
from accord.authority.nats.callout import Callout, RefusalSink, log_refusal
from accord.authority.offers import Offers
from accord.authority.rules.connections import (
    PAGE_SIZE,
    ConnectionChange,
    ConnectionKey,
    ConnectionPage,
    ConnectionTable,
    IssuedPermissions,
    NatsPermissions,
    SessionConnection,
    connect_refusal,
    connection_key,
    read_advisory,
    read_page,
)
from accord.authority.rules.errors import AuthorityError, Code
from accord.authority.service import Authority
from accord.fabric.link import is_jetstream_answer
from accord.kernel.clock import Clock
from accord.kernel.errors import AccordError

_log = structlog.stdlib.get_logger(__name__)

_LIST_SECONDS: Final = 2.0
_QUIET_SECONDS: Final = 0.25
_ALL_SERVERS: Final = "PING"


async def list_connections(system: Client, account: str) -> list[SessionConnection]:
    """Every connection of a session of an account; TimeoutError if no server answers."""
    pages = await _request_page(system, account, _ALL_SERVERS)
    if not pages:
        raise TimeoutError("no server answers")
    found: list[SessionConnection] = []
    while pages:
        page = pages.pop()
        found += page.connections
        if page.following is not None:
            pages += await _request_page(system, account, page.server, page.following)
    return found


async def _request_page(
    system: Client, account: str, server: str, offset: int = 0
) -> list[ConnectionPage]:
    """One page of one server, or the first pages of all of them."""
    question = {"acc": account, "auth": True, "limit": PAGE_SIZE, "offset": offset}
    inbox = system.new_inbox()
    answers = await system.subscribe(inbox)
    pages: list[ConnectionPage] = []
    try:
        await system.publish(f"$SYS.REQ.SERVER.{server}.CONNZ", orjson.dumps(question), reply=inbox)
        while server == _ALL_SERVERS or not pages:
            # The number of servers is unknown; one that answers much later than the first is
            # asked again in the next round.
            wait = _QUIET_SECONDS if pages else _LIST_SECONDS
            page = read_page((await answers.next_msg(wait)).data)
            if page is not None:
                pages.append(page)
    except NatsTimeoutError:
        pass
    finally:
        with contextlib.suppress(NatsError):
            await answers.unsubscribe()
    return pages


_LIST_EVERY_SECONDS: Final = 10.0
_ANSWER_SECONDS: Final = 2.0
_CHECK_DELAY_SECONDS: Final = 0.25
_CHECK_EVERY_SECONDS: Final = 60.0
# Checking takes at most a fifth of the time, however many connections there are.
_REST: Final = 4.0
_MAX_EVENTS: Final = 10_000

ConnectionCallback = Callable[[ConnectionChange, SessionConnection, str | None], Awaitable[None]]
ConnectionEvent = tuple[ConnectionChange, SessionConnection, str | None]


class Connections:
    """Watches the connections of a system, which must have a user of the system account.

    `tell` is called for every connection that is opened, closed or ended (then with the reason).
    """

    def __init__(
        self,
        authority: Authority,
        cluster: Cluster,
        clock: Clock,
        issued: IssuedPermissions,
        *,
        tell: ConnectionCallback | None = None,
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
        self._table = ConnectionTable()
        self._gone: set[ConnectionKey] = set()
        self._nats: Client | None = None
        self._list_now = asyncio.Event()
        self._events: asyncio.Queue[ConnectionEvent] = asyncio.Queue(_MAX_EVENTS)
        self._check_now = asyncio.Event()

    def all(self) -> tuple[SessionConnection, ...]:
        """The open connections, in the order in which they were seen."""
        return self._table.all()

    def is_connected(self, key: str) -> bool:
        """Whether a session has a connection."""
        return self._table.has_session(key)

    async def kick(self, key: str, by: str) -> int:
        """End every connection of a session, which may connect again; how many there were."""
        ended = self._table.of_session(key)
        for connection in ended:
            await self._end(connection, by)
        return len(ended)

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Watch until the block ends; when it begins, every connection is known."""

        async def back() -> None:
            self._list_now.set()

        self._nats = await connect(
            "watch connections", self._cluster, self._system, reconnected_cb=back
        )
        try:
            await self._nats.subscribe(
                f"$SYS.ACCOUNT.{self._cluster.account}.*", cb=self._on_advisory
            )
            await self._nats.flush()
            await self._list_connections()
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(work, name=name)
                    for name, work in (
                        ("list connections", self._list_loop()),
                        ("follow changes of the authority", self._follow_changes()),
                        ("check connections", self._check_loop()),
                        ("deliver connection events", self._deliver_events()),
                    )
                ]
                yield
                for task in tasks:
                    task.cancel()
        finally:
            await self._nats.close()

    async def _on_advisory(self, message: Msg) -> None:
        advisory = read_advisory(message.subject, message.data)
        if advisory is None:
            return
        change, connection = advisory
        if change is ConnectionChange.OPENED:
            await self._open(connection)
        else:
            await self._close(connection)

    async def _open(self, connection: SessionConnection) -> None:
        if connection_key(connection) in self._table:
            return
        admitted = connection.admitted
        if self._table.add(connection):
            await self._report(self._authority.offers.connected(admitted.key, admitted.digest))
        self._queue_event(ConnectionChange.OPENED, connection)

    async def _close(self, connection: SessionConnection) -> None:
        self._gone.add(connection_key(connection))
        removed = self._table.remove(connection_key(connection))
        if removed is None:
            return
        gone, is_last = removed
        if is_last:
            await self._report(
                self._authority.offers.disconnected(gone.admitted.key, gone.admitted.digest)
            )
        self._queue_event(ConnectionChange.CLOSED, gone)

    def _queue_event(
        self, change: ConnectionChange, connection: SessionConnection, by: str | None = None
    ) -> None:
        try:
            self._events.put_nowait((change, connection, by))
        except asyncio.QueueFull:
            _log.warning("a connection event is dropped, the queue is full", change=change.value)

    async def _deliver_events(self) -> None:
        """Call `tell` from a queue, so that a slow or failing callee delays nothing else."""
        while True:
            change, connection, by = await self._events.get()
            if self._tell is None:
                continue
            try:
                await self._tell(change, connection, by)
            except (AccordError, NatsError, OSError) as error:
                _log.warning(
                    "a connection event was not delivered", change=change.value, why=str(error)
                )

    async def _report(self, call: Awaitable[object]) -> None:
        try:
            await call
        except AccordError as error:
            # The connections are listed again; meanwhile heartbeats keep the offer alive.
            _log.warning("a connection was not recorded", why=str(error))

    async def _list_loop(self) -> None:
        """List connections every few seconds, and after a reconnect."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LIST_EVERY_SECONDS):
                    await self._list_now.wait()
            self._list_now.clear()
            try:
                await self._list_connections()
            except (NatsError, OSError, TimeoutError) as error:
                _log.warning("connections could not be listed", why=repr(error))

    async def _list_connections(self) -> None:
        """Replace the table by what the servers list; advisories may have been lost."""
        assert self._nats is not None
        before = self._table.all()
        self._gone.clear()
        present = await list_connections(self._nats, self._cluster.account)
        places = {connection_key(connection) for connection in present}
        for connection in before:
            if connection_key(connection) not in places:
                await self._close(connection)
        for connection in present:
            if (
                connection_key(connection) not in self._gone
                and connection_key(connection) not in self._table
            ):
                await self._open(connection)
                self._check_now.set()

    async def _follow_changes(self) -> None:
        changes = self._authority.changes
        count = changes.count
        while True:
            count = await changes.after(count)
            self._check_now.set()

    async def _check_loop(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHECK_EVERY_SECONDS):
                    await self._check_now.wait()
            self._check_now.clear()
            begun = self._clock.monotonic()
            await self._check_all()
            spent = self._clock.monotonic() - begun
            await asyncio.sleep(max(_CHECK_DELAY_SECONDS, _REST * spent))

    async def _check_all(self) -> None:
        """End every connection with more permissions than it would get now."""
        for connection in self._table.all():
            why = await self._end_reason(connection)
            if why is not None and connection_key(connection) in self._table:
                await self._end(connection, why)

    async def _end_reason(self, connection: SessionConnection) -> str | None:
        admitted = connection.admitted
        try:
            grants = await self._authority.sessions.grants(admitted.key, admitted.digest)
            if not grants.ok:
                raise connect_refusal(grants)
        except AccordError as error:
            if isinstance(error, AuthorityError) and error.code is not Code.UNAVAILABLE:
                return str(error)
            # The store is unavailable: it is unknown whether anything was revoked.
            _log.warning("a connection could not be checked", why=str(error))
            return None
        if not self._issued.is_covered(admitted.fingerprint, NatsPermissions.of(grants)):
            return "a permission was revoked"
        return None

    async def _end(self, connection: SessionConnection, by: str) -> None:
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
            self._check_now.set()
            return
        self._queue_event(ConnectionChange.KICKED, connection, by)


_HEARTBEAT_GROUP: Final = "accord-authority"
_MAX_HEARTBEAT_BYTES: Final = 64 * 1024
_MIN_HEARTBEAT_SECONDS: Final = 1.0
_MAX_REMEMBERED_HEARTBEATS: Final = 32
_HEARTBEAT_MEMBERS: Final = ("sessionKey", "contractId", "contractDigest")

HeartbeatKey = tuple[str, str, str]


class Heartbeats:
    """Passes heartbeats of connected sessions on to their offers."""

    def __init__(self, offers: Offers, clock: Clock, is_connected: Callable[[str], bool]) -> None:
        self._offers = offers
        self._clock = clock
        self._is_connected = is_connected
        self._since = clock.monotonic()
        self._heard: set[HeartbeatKey] = set()
        self._by_session: Counter[str] = Counter()

    @asynccontextmanager
    async def listening(self, connection: Client, subject: str) -> AsyncIterator[None]:
        """Listen on the subject of `Health.Heartbeat` until the block ends."""
        subscription = await connection.subscribe(subject, _HEARTBEAT_GROUP, cb=self._on_heartbeat)
        try:
            yield
        finally:
            with contextlib.suppress(NatsError):
                await subscription.unsubscribe()

    async def _on_heartbeat(self, message: Msg) -> None:
        beat = None if is_jetstream_answer(message) else read_heartbeat(message.data)
        if beat is None or not self._is_connected(beat[0]) or not self._is_due(beat):
            return
        try:
            await self._offers.heartbeat(*beat)
        except AccordError as error:
            _log.warning("a heartbeat was not recorded", session=beat[0], why=str(error))

    def _is_due(self, beat: HeartbeatKey) -> bool:
        """Whether to pass it on; at most one per second and offer."""
        now = self._clock.monotonic()
        if now - self._since >= _MIN_HEARTBEAT_SECONDS:
            self._since = now
            self._heard.clear()
            self._by_session.clear()
        if beat in self._heard or self._by_session[beat[0]] >= _MAX_REMEMBERED_HEARTBEATS:
            return False
        self._heard.add(beat)
        self._by_session[beat[0]] += 1
        return True


def read_heartbeat(data: bytes) -> HeartbeatKey | None:
    """The session key, contract id and digest of a heartbeat; None if it is malformed."""
    try:
        body = orjson.loads(data) if len(data) <= _MAX_HEARTBEAT_BYTES else None
    except orjson.JSONDecodeError:
        return None
    if not isinstance(body, dict):
        return None
    key, contract_id, digest = (body.get(member) for member in _HEARTBEAT_MEMBERS)
    if isinstance(key, str) and isinstance(contract_id, str) and isinstance(digest, str):
        return key, contract_id, digest
    return None


UNSEEN_CONNECTION_SECONDS: Final = 300.0


class SessionPresence(Protocol):
    """The connections of sessions."""

    def all(self) -> tuple[SessionConnection, ...]:
        """The open connections."""
        ...

    def is_connected(self, key: str) -> bool:
        """Whether a session has a connection."""
        ...

    async def kick(self, key: str, by: str) -> int:
        """End every connection of a session; how many there were."""
        ...


class UnknownPresence:
    """The connections of a system that lists none: any session may be connected."""

    def all(self) -> tuple[SessionConnection, ...]:
        """No connection is known."""
        return ()

    def is_connected(self, key: str) -> bool:
        """Always True."""
        return True

    async def kick(self, key: str, by: str) -> int:
        """Does nothing."""
        return 0


@dataclass(frozen=True, slots=True)
class NatsControl:
    """The connections of sessions, and the authority's own, which has no limits."""

    nats: Client
    presence: SessionPresence


@asynccontextmanager
async def control_nats(
    authority: Authority,
    cluster: Cluster,
    clock: Clock,
    *,
    heartbeats: str,
    tell: Callable[[Client], ConnectionCallback] | None = None,
    audit: RefusalSink = log_refusal,
) -> AsyncIterator[NatsControl]:
    """Admit sessions, watch them and receive their heartbeats until the block ends.

    `heartbeats` is the subject of `Health.Heartbeat`; `tell` makes the callback for connection
    changes, given the authority's own connection; `audit` is called with every refusal.
    """
    issued = IssuedPermissions()
    async with AsyncExitStack() as stack:
        own = await connect("serve", cluster, cluster.authority)
        stack.push_async_callback(own.close)
        presence: SessionPresence = UnknownPresence()
        if cluster.system is not None:
            await _check_accounts(cluster, cluster.system)
            callback = None if tell is None else tell(own)
            watch = Connections(authority, cluster, clock, issued, tell=callback)
            await stack.enter_async_context(watch.watching())
            presence = watch
        beats = Heartbeats(authority.offers, clock, presence.is_connected)
        await stack.enter_async_context(beats.listening(own, heartbeats))
        lifetime = UNSEEN_CONNECTION_SECONDS if cluster.system is None else None
        callout = Callout(authority, cluster, clock, issued, audit=audit, lifetime=lifetime)
        await stack.enter_async_context(callout.listening())
        yield NatsControl(own, presence)


async def _check_accounts(cluster: Cluster, system: Credentials) -> None:
    """Warn if sessions could make JetStream publish for them what they may not."""
    watching = await connect("look at accounts", cluster, system)
    try:
        found = await find_account_fault(watching, cluster.account)
    except NatsError as error:
        found = f"they cannot be inspected ({error})"
    finally:
        await watching.close()
    if found is not None:
        _log.warning(
            "sessions are not separated from JetStream: every session must be trusted",
            why=found,
            mend="set up the accounts as in docs/concepts/authority.md",
        )
