"""Downloads on the service's side: sealed frames, as far as the caller wants them.

A caller may subscribe to a download and do nothing else, so its interest is what it can say: each
window of frames goes to a subject of its own, and nothing goes there before somebody listens.
"""

import asyncio
import secrets
from contextlib import suppress
from typing import Any, Final, Self

import structlog
from nacl.secret import SecretBox
from nats.errors import Error as NatsError

from accord.contracts.permissions import session_prefix
from accord.fabric.errors import FabricError, NotFoundError, UnavailableError, write_error
from accord.fabric.link import ERROR, STATUS, Link
from accord.fabric.objects import CHUNK_BYTES, ObjectStore
from accord.fabric.transfer.grant import EOF, SEQUENCE, WINDOW, Grant, seal, window_subject

EXPIRES_SECONDS: Final = 900.0
"""How long a download may take unless the service says otherwise."""

_MOST: Final = 256
_SHORTEST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.5

_log = structlog.stdlib.get_logger(__name__)


class Downloads:
    """The downloads from one instance, while it is entered.

    Args:
        link: The instance's link.
        service: The name under which the service is known.
    """

    def __init__(self, link: Link, service: str) -> None:
        self._link = link
        self._service = service
        self._stem = f"transfer.v1.download.{session_prefix(link.session)}"
        self._sending: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._sending:
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def offer(
        self, session: str, store: ObjectStore, key: str, *, expires: float = EXPIRES_SECONDS
    ) -> dict[str, Any]:
        """Let a session download an object: the grant, for the answer of an RPC.

        Raises:
            NotFoundError: There is no such object.
            UnavailableError: As many downloads are open here as may.
        """
        stored = await store.info(key)
        if stored is None:
            raise NotFoundError("there is no such file", where=key)
        if len(self._sending) >= _MOST:
            raise UnavailableError(f"{_MOST} downloads are open here already", mend="try later")
        identity = self._link.ids.new()
        grant = Grant(
            "receive",
            self._service,
            session,
            identity,
            f"{self._stem}.{identity}",
            self._link.clock.now() + expires,
            CHUNK_BYTES,
            info=stored.wire(),
            seal=secrets.token_bytes(SecretBox.KEY_SIZE),
        )
        task = asyncio.create_task(self._send(grant, store, key, expires))
        self._sending.add(task)
        task.add_done_callback(self._sending.discard)
        return grant.wire()

    async def _send(self, grant: Grant, store: ObjectStore, key: str, expires: float) -> None:
        probe = f"{self._link.prefix}.{secrets.token_hex(8)}"
        try:
            unheard = await self._link.nats.subscribe(probe)
        except NatsError:
            return
        sequence = 0

        async def send(data: bytes, headers: dict[str, str], *, eof: bool = False) -> None:
            nonlocal sequence
            subject = window_subject(grant, sequence)
            sealed = data if STATUS in headers else seal(grant, data, sequence, eof=eof)
            numbered = {**headers, SEQUENCE: str(sequence)}
            pause = _SHORTEST_PAUSE
            while True:
                first = sequence % WINDOW == 0
                reply = probe if first else ""
                await self._link.nats.publish(subject, sealed, reply, numbered)
                # The server says that nobody listens before it answers to what comes after.
                await self._link.nats.flush()
                if not first or not unheard.pending_msgs:
                    break
                await unheard.next_msg()
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE, pause * 2)
            sequence += 1

        try:
            async with asyncio.timeout(expires):
                try:
                    async for chunk in store.read(key):
                        await send(chunk, {})
                    await send(b"", {EOF: "true"}, eof=True)
                except FabricError as error:
                    await send(write_error(error, self._link.ids.new()), {STATUS: ERROR})
        except TimeoutError:
            _log.info("a download was not fetched in time", transfer=grant.id)
        except NatsError as error:
            _log.warning("a download was broken off", transfer=grant.id, why=str(error))
        finally:
            with suppress(NatsError):
                await unheard.unsubscribe()
