"""Uploads on the service's side: signed frames in order, straight into the object store.

Owns the uploads that are open on this instance. A file is there when its last frame was answered;
whatever goes wrong before leaves nothing behind.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

import structlog
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from accord.contracts.permissions import session_prefix
from accord.fabric import proofs
from accord.fabric.errors import (
    DeadlineError,
    FabricError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
    write_error,
)
from accord.fabric.link import ERROR, STATUS, Link
from accord.fabric.objects import ObjectInfo, ObjectStore
from accord.fabric.transfer.grant import EOF, SEQUENCE, Grant, frame_id
from accord.kernel import canonical

EXPIRES_SECONDS: Final = 900.0
"""How long an upload may take where the contract does not say."""

UPLOAD_CHUNK_BYTES: Final = 262_144
_MOST: Final = 256
_CONTINUE: Final = canonical.encode({"status": "continue"})

_log = structlog.stdlib.get_logger(__name__)

Completed = Callable[[], Awaitable[Mapping[str, Any]]]
"""Waits until a file was uploaded, and says what it is."""

Frame = bytes | FabricError | None
"""A piece of the file, why there will be no more, or its end."""


@dataclass(eq=False)
class _Open:
    """One upload that may come, or is coming."""

    grant: Grant
    frames: "asyncio.Queue[bytes | FabricError | None]" = field(
        default_factory=lambda: asyncio.Queue(2)
    )
    expected: int = 0
    size: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    stored: "asyncio.Task[ObjectInfo] | None" = None

    @property
    def is_over(self) -> bool:
        """Whether nothing is to come any more."""
        return self.stored is None or self.stored.done()

    async def data(self) -> AsyncIterator[bytes]:
        """The file's bytes as they come."""
        while (frame := await self.frames.get()) is not None:
            if isinstance(frame, FabricError):
                raise frame
            yield frame


class Uploads:
    """The uploads to one instance, while it is entered.

    Args:
        link: The instance's link.
        service: The name under which the service is known.
    """

    def __init__(self, link: Link, service: str) -> None:
        self._link = link
        self._service = service
        self._stem = f"transfer.v1.upload.{session_prefix(link.session)}"
        self._open: dict[str, _Open] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._hearing: Subscription | None = None

    async def __aenter__(self) -> Self:
        self._hearing = await self._link.nats.subscribe(f"{self._stem}.*", cb=self._heard)
        return self

    async def __aexit__(self, *_: object) -> None:
        tasks = [*self._answering, *(each.stored for each in self._open.values() if each.stored)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._hearing is not None:
            with suppress(NatsError):
                await self._hearing.unsubscribe()

    def open(
        self,
        session: str,
        store: ObjectStore,
        key: str,
        *,
        expires: float = EXPIRES_SECONDS,
        max_bytes: int | None = None,
        content_type: str | None = None,
        metadata: Mapping[str, str] | None = None,
    ) -> tuple[Grant, Completed]:
        """Let a session upload a file: the grant for it, and how to wait for the file.

        Raises:
            UnavailableError: As many uploads are open here as may.
        """
        if sum(not each.is_over for each in self._open.values()) >= _MOST:
            raise UnavailableError(f"{_MOST} uploads are open here already", mend="try later")
        limits = [most for most in (max_bytes, store.max_object_bytes) if most is not None]
        identity = self._link.ids.new()
        grant = Grant(
            "send",
            self._service,
            session,
            identity,
            f"{self._stem}.{identity}",
            self._link.clock.now() + expires,
            UPLOAD_CHUNK_BYTES,
            min(limits, default=None),
            content_type,
            metadata,
        )
        opened = _Open(grant)
        opened.stored = asyncio.create_task(self._store(opened, store, key, expires))
        self._open[identity] = opened
        stored = opened.stored
        stored.add_done_callback(_seen)

        async def completed() -> Mapping[str, Any]:
            return (await asyncio.shield(stored)).wire()

        return grant, completed

    async def _store(
        self, opened: _Open, store: ObjectStore, key: str, expires: float
    ) -> ObjectInfo:
        grant = opened.grant
        try:
            async with asyncio.timeout(expires):
                return await store.put(
                    key,
                    opened.data(),
                    content_type=grant.content_type,
                    metadata=grant.metadata,
                )
        except TimeoutError:
            raise DeadlineError("the upload was not completed in time") from None
        finally:
            # The last frame may come again, should its answer get lost.
            asyncio.get_running_loop().call_later(60, self._open.pop, grant.id, None)

    async def _heard(self, msg: Msg) -> None:
        if len(self._answering) < _MOST:
            task = asyncio.create_task(self._answer(msg))
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

    async def _answer(self, msg: Msg) -> None:
        headers = msg.headers or {}
        if not proofs.is_own_inbox(headers.get(proofs.SESSION, ""), msg.reply):
            return
        try:
            data, said = await self._take(msg, headers), {}
        except FabricError as error:
            data, said = write_error(error, self._link.ids.new()), {STATUS: ERROR}
        try:
            await self._link.nats.publish(msg.reply, data, headers=said)
        except NatsError as error:
            _log.warning("a frame could not be answered", why=str(error))

    async def _take(self, msg: Msg, headers: Mapping[str, str]) -> bytes:
        """Check a frame, and hand it on."""
        opened = self._open.get(msg.subject.rpartition(".")[2])
        if opened is None or opened.stored is None:
            raise NotFoundError("there is no such upload")
        sequence, eof = _numbered(headers)
        signed = proofs.read(headers)
        if signed.session != opened.grant.session:
            raise UnauthorizedError("the upload is another session's")
        if signed.request_id != frame_id(opened.grant.id, sequence, eof=eof):
            raise UnauthorizedError("the frame is signed as another one")
        proofs.verify(signed, msg.subject, msg.data, self._link.clock.now())
        async with opened.turn:
            if sequence == opened.expected:
                await self._hand_on(opened, msg.data, eof=eof)
            elif sequence != opened.expected - 1:  # one that came before is answered again
                raise ValidationError(f"frame {opened.expected} was expected, not {sequence}")
        if not eof:
            return _CONTINUE
        stored = await asyncio.shield(opened.stored)
        return canonical.encode({"status": "complete", "info": stored.wire()})

    async def _hand_on(self, opened: _Open, data: bytes, *, eof: bool) -> None:
        opened.size += len(data)
        opened.expected += 1
        most = opened.grant.max_bytes
        if most is not None and opened.size > most:
            refusal = ValidationError(f"the file has more than the {most} bytes accepted")
            await _put(opened, refusal)
            raise refusal
        if data:
            await _put(opened, data)
        if eof:
            await _put(opened, None)


async def _put(opened: _Open, frame: Frame) -> None:
    """Hand a frame to whoever stores the file, unless that has failed.

    Raises:
        FabricError: Why it is not stored.
    """
    assert opened.stored is not None
    handing = asyncio.ensure_future(opened.frames.put(frame))
    await asyncio.wait((handing, opened.stored), return_when=asyncio.FIRST_COMPLETED)
    if not handing.done():
        handing.cancel()
        opened.stored.result()


def _seen(stored: "asyncio.Task[ObjectInfo]") -> None:
    """Whether somebody waits for it or not, that it failed is no fault of the program's."""
    if not stored.cancelled():
        stored.exception()


def _numbered(headers: Mapping[str, str]) -> tuple[int, bool]:
    number = headers.get(SEQUENCE, "")
    if not (number.isascii() and number.isdecimal() and len(number) < 16):
        raise ValidationError(f"the header {SEQUENCE} is missing or malformed")
    return int(number), headers.get(EOF) == "true"
