"""The NATS connection of a session.

Connects through the auth callout, reconnects with a fresh token, and repeats the bootstrap when the
server no longer accepts the session.
"""

import asyncio
import base64
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

import nkeys  # type: ignore[import-untyped]
import structlog
from nats.errors import Error as NatsError

from accord.contracts.permissions import inbox_prefix
from accord.contracts.session_proof import connect_token, session_key
from accord.fabric.bootstrap import Authority, ConnectInfo, bootstrap
from accord.fabric.link import Link
from accord.fabric.nats_client import NatsClient
from accord.fabric.rules.errors import BootstrapError, FabricError, UnavailableError
from accord.fabric.rules.terms import Terms
from accord.kernel.clock import Clock, SystemClock
from accord.kernel.signing import SigningKey

_ATTEMPT_SECONDS: Final = 5.0
# A connect token is valid once, for its second.
_RETRY_SECONDS: Final = 1
_PING_SECONDS: Final = 20
_DENIED: Final = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"')
_LOCKED_OUT: Final = ("authorization", "authentication", "revoked")

_log = structlog.stdlib.get_logger(__name__)


class Connection:
    """A session's connection.

    Attributes:
        link: Set while the connection is open.
        ended: Done when the connection is closed for good; holds the error, if there was one.
    """

    def __init__(
        self, authority: Authority, key: SigningKey, terms: Terms, clock: Clock | None = None
    ) -> None:
        self._authority = authority
        self._key = key
        self._terms = terms
        self._clock = clock or SystemClock()
        self._stale = asyncio.Event()
        self._ready: ConnectInfo | None = None
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.link: Link

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Link]:
        """Connect, and stay connected until the block ends.

        Raises:
            BootstrapError: The authority refuses the session.
            UnavailableError: NATS cannot be reached within the authority's patience.
        """
        client = await self._connect()
        renewing = asyncio.create_task(self._renew(client))
        try:
            yield self.link
        finally:
            renewing.cancel()
            with suppress(asyncio.CancelledError):
                await renewing
            await client.close()
            if not self.ended.done():
                self.ended.set_result(None)
            elif not self.ended.cancelled():
                self.ended.exception()  # mark it as retrieved, so that asyncio does not log it

    async def _connect(self) -> NatsClient:
        loop = asyncio.get_running_loop()
        patience = self._authority.patience
        end = None if patience is None else loop.time() + patience
        while True:
            self._ready = await bootstrap(self._authority, self._key, self._terms, self._clock)
            client = NatsClient()
            self.link = Link(client, self._key, bound=self._ready.bound, clock=self._clock)
            try:
                async with asyncio.timeout(_attempt(end, loop.time())):
                    await self._dial(client)
            except (OSError, NatsError, TimeoutError) as error:
                await client.close()
                why = client.last_error or error
                if end is not None and loop.time() >= end:
                    raise UnavailableError(
                        f"NATS does not let this session in ({why})",
                        where=", ".join(self._ready.urls),
                    ) from error
                _log.warning("the connection to NATS cannot be made", why=str(why))
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self._stale.clear()
                return client

    async def _dial(self, client: NatsClient) -> None:
        assert self._ready is not None
        await client.connect(
            list(self._ready.urls),
            name=f"{self._terms.id} {self._ready.bound.instance or ''}".strip(),
            user_jwt_cb=lambda: self._sentinel().jwt.encode(),
            signature_cb=lambda nonce: _signature(self._sentinel().seed, nonce),
            token=lambda: connect_token(self._key, self._terms.digest, int(self._clock.now())),
            inbox_prefix=inbox_prefix(session_key(self._key)),
            error_cb=self._hear_error,
            disconnected_cb=self._lost,
            reconnected_cb=self._back,
            max_reconnect_attempts=-1,
            reconnect_time_wait=_RETRY_SECONDS,
            ping_interval=_PING_SECONDS,
            tls=self._authority.tls,
        )

    def _sentinel(self) -> ConnectInfo:
        assert self._ready is not None
        return self._ready

    async def _hear_error(self, error: Exception) -> None:
        text = str(error)
        denied = _DENIED.search(text.lower())
        if denied is not None:
            _log.warning("the server denied a permission", why=text)
            self.link.deny(denied[1], denied[2])
        elif any(word in text.lower() for word in _LOCKED_OUT):
            _log.warning("the server rejected the session", why=text)
            self._stale.set()
        else:
            _log.info("the connection to NATS has a problem", why=text or type(error).__name__)

    async def _lost(self) -> None:
        self.link.inbox.interrupt()

    async def _back(self) -> None:
        _log.info("connected to NATS again")
        for call in list(self.link.on_return):
            call()

    async def _renew(self, client: NatsClient) -> None:
        """Repeat the bootstrap whenever the server rejects the session."""
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                self._ready = await bootstrap(self._authority, self._key, self._terms, self._clock)
            except BootstrapError as error:
                await self._end(client, error)
                return
            self.link.bound = self._ready.bound
            with suppress(NatsError):
                client.set_server_pool(list(self._ready.urls))

    async def _end(self, client: NatsClient, error: FabricError) -> None:
        _log.error("the session ended", why=str(error))
        if not self.ended.done():
            self.ended.set_exception(error)
        await client.close()


def _attempt(end: float | None, now: float) -> float:
    """Seconds for one attempt: bounded, and little more than is left until `end`."""
    return _ATTEMPT_SECONDS if end is None else min(_ATTEMPT_SECONDS, max(1.0, end - now))


def _signature(seed: str, nonce: str) -> bytes:
    pair = nkeys.from_seed(bytearray(seed.encode()))
    try:
        return base64.b64encode(pair.sign(nonce.encode()))
    finally:
        pair.wipe()
