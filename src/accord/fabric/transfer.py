"""Transfers: files that a caller uploads for an operation or downloads after an RPC.

Upload frames are signed, in order, and go straight into the object store; the file exists once its
last frame was answered. Download frames are encrypted; callers can only subscribe, so every window
of frames has its own subject and is sent once somebody listens there.
"""

import asyncio
import base64
import binascii
import hashlib
import secrets
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

import structlog
from nacl.secret import SecretBox
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError

from accord.contracts.permissions import session_prefix
from accord.fabric.link import ERROR, STATUS, Link, raise_error, subscribe_published
from accord.fabric.objects import CHUNK_BYTES, ObjectStore, open_store
from accord.fabric.requests import Request
from accord.fabric.rules import proofs
from accord.fabric.rules.errors import (
    DeadlineError,
    FabricError,
    NotFoundError,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
    write_error,
)
from accord.fabric.rules.terms import Terms, parse_json
from accord.fabric.rules.transfers import (
    EOF,
    SEQUENCE,
    WINDOW,
    ObjectInfo,
    TransferGrant,
    frame_id,
    read_grant,
    seal,
    unseal,
    window_subject,
)
from accord.kernel import canonical

_log = structlog.stdlib.get_logger(__name__)

_FRAME_SECONDS: Final = 20.0
_TRIES: Final = 3


async def upload(link: Link, grant: Any, data: bytes | AsyncIterable[bytes]) -> dict[str, Any]:
    """Upload a file for a grant, such as `Run.transfer`; returns its description.

    Raises ValidationError if the grant is invalid or the file too large, or the FabricError that
    came.
    """
    granted = _mine(link, grant, "send")
    sequence, size = 0, len(data) if isinstance(data, bytes) else 0
    _check_size(granted, size)
    async for chunk in _cut(data, granted.chunk_bytes):
        if not isinstance(data, bytes):
            size += len(chunk)
            _check_size(granted, size)
        await _frame(link, granted, chunk, sequence, eof=False)
        sequence += 1
    answer = await _frame(link, granted, b"", sequence, eof=True)
    info = answer.get("info")
    if answer.get("status") != "complete" or not isinstance(info, dict):
        raise ValidationError("the upload was not completed")
    return info


async def download(link: Link, grant: Any) -> AsyncIterator[bytes]:
    """Download a file in chunks.

    Raises ValidationError if the grant is invalid, UnauthorizedError if a frame was not encrypted
    with its key, FabricError if the download failed; the chunks so far are incomplete.
    """
    granted = _mine(link, grant, "receive")
    digest, sequence = hashlib.sha256(), 0
    windows: list[Subscription] = []
    try:
        # One window ahead, so that sending does not pause between two windows.
        windows += [await _listen(link, granted, number) for number in range(2)]
        while True:
            if sequence and sequence % WINDOW == 0:
                await windows.pop(0).unsubscribe()
                windows.append(await _listen(link, granted, sequence // WINDOW + 1))
            chunk, eof = await _next(windows[0], granted, sequence)
            if eof:
                break
            digest.update(chunk)
            sequence += 1
            yield chunk
    except NatsError as error:
        raise UnavailableError(f"the connection cannot be used: {error}") from None
    finally:
        for window in windows:
            if not link.nats.is_closed:
                await window.unsubscribe()
    if digest.digest() != _digest(granted):
        raise FabricError("the file is not the one that was granted")


async def _next(window: Subscription, granted: TransferGrant, sequence: int) -> tuple[bytes, bool]:
    try:
        msg = await window.next_msg(_FRAME_SECONDS)
    except NatsTimeoutError:
        raise DeadlineError("the download has stopped", mend="ask for it again") from None
    raise_error(msg)
    headers = msg.headers or {}
    eof = headers.get(EOF) == "true"
    if headers.get(SEQUENCE) != str(sequence):
        raise UnavailableError("a frame of the download was lost", mend="ask for it again")
    return unseal(granted, msg.data, sequence, eof=eof), eof


async def _listen(link: Link, granted: TransferGrant, number: int) -> Subscription:
    return await link.nats.subscribe(window_subject(granted, number * WINDOW))


async def _frame(
    link: Link, granted: TransferGrant, data: bytes, sequence: int, *, eof: bool
) -> dict[str, Any]:
    """Send a frame until it is answered; the service accepts a repeated frame once."""
    for attempt in range(1, _TRIES + 1):
        headers = proofs.sign(
            link.key,
            link.session,
            granted.subject,
            data,
            int(link.clock.now()),
            frame_id(granted.id, sequence, eof=eof),
        )
        headers[SEQUENCE] = str(sequence)
        if eof:
            headers[EOF] = "true"
        try:
            answer = await link.inbox.ask(granted.subject, data, headers, _FRAME_SECONDS)
        except DeadlineError:
            if attempt == _TRIES:
                raise
            continue
        raise_error(answer)
        body = parse_json(answer.data, "the answer")
        if isinstance(body, dict):
            return body
        break
    raise ValidationError("the answer to a frame is invalid")


def _check_size(granted: TransferGrant, size: int) -> None:
    if granted.max_bytes is not None and size > granted.max_bytes:
        raise ValidationError(f"the file has more than the {granted.max_bytes} bytes accepted")


def _mine(link: Link, grant: Any, direction: str) -> TransferGrant:
    granted = read_grant(grant)
    if granted.direction != direction:
        raise ValidationError(f"the grant is not one to {direction}")
    if granted.session != link.session:
        raise UnauthorizedError("the grant is another session's")
    if link.clock.now() >= granted.expires_at:
        raise DeadlineError("the grant has run out", mend="ask for it again")
    return granted


def _digest(granted: TransferGrant) -> bytes | None:
    described = (granted.info or {}).get("digest")
    try:
        return base64.urlsafe_b64decode(str(described).partition("=")[2])
    except (binascii.Error, ValueError):
        return None


async def _cut(data: bytes | AsyncIterable[bytes], size: int) -> AsyncIterator[bytes]:
    if isinstance(data, bytes):
        for start in range(0, len(data), size):
            yield data[start : start + size]
        return
    async for piece in data:
        for start in range(0, len(piece), size):
            yield piece[start : start + size]


EXPIRES_SECONDS: Final = 900.0
"""Default number of seconds that a download may take."""

_MAX_DOWNLOADS: Final = 256
_SHORTEST_PAUSE: Final = 0.005
_LONGEST_PAUSE: Final = 0.5


class Downloads:
    """The downloads from one instance, while it is entered."""

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
        """Offer an object to a session; returns the grant, to be answered to an RPC.

        Raises NotFoundError, or UnavailableError if too many downloads are open.
        """
        stored = await store.info(key)
        if stored is None:
            raise NotFoundError("there is no such file", where=key)
        if len(self._sending) >= _MAX_DOWNLOADS:
            raise UnavailableError(
                f"{_MAX_DOWNLOADS} downloads are open here already", mend="try later"
            )
        identity = self._link.ids.new()
        grant = TransferGrant(
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

    async def _send(
        self, grant: TransferGrant, store: ObjectStore, key: str, expires: float
    ) -> None:
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
                # The server reports missing subscribers before it answers the flush.
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


UPLOAD_CHUNK_BYTES: Final = 262_144
_MAX_UPLOADS: Final = 256
_CONTINUE: Final = canonical.encode({"status": "continue"})

Completed = Callable[[], Awaitable[Mapping[str, Any]]]
"""Waits for an upload and returns its description."""

Frame = bytes | FabricError | None
"""A chunk, the error that ends the upload, or None at its end."""


@dataclass(eq=False)
class _OpenUpload:
    grant: TransferGrant
    frames: "asyncio.Queue[bytes | FabricError | None]" = field(
        default_factory=lambda: asyncio.Queue(2)
    )
    expected: int = 0
    size: int = 0
    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    stored: "asyncio.Task[ObjectInfo] | None" = None

    @property
    def is_over(self) -> bool:
        """Whether no more frames are accepted."""
        return self.stored is None or self.stored.done()

    async def data(self) -> AsyncIterator[bytes]:
        """The file's bytes as they arrive."""
        while (frame := await self.frames.get()) is not None:
            if isinstance(frame, FabricError):
                raise frame
            yield frame


class Uploads:
    """The uploads to one instance, while it is entered."""

    def __init__(self, link: Link, service: str) -> None:
        self._link = link
        self._service = service
        self._stem = f"transfer.v1.upload.{session_prefix(link.session)}"
        self._open: dict[str, _OpenUpload] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._hearing: Subscription | None = None

    async def __aenter__(self) -> Self:
        self._hearing = await subscribe_published(self._link.nats, f"{self._stem}.*", self._heard)
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
    ) -> tuple[TransferGrant, Completed]:
        """Let a session upload a file: the grant, and a function that waits for the file."""
        if sum(not each.is_over for each in self._open.values()) >= _MAX_UPLOADS:
            raise UnavailableError(
                f"{_MAX_UPLOADS} uploads are open here already", mend="try later"
            )
        limits = [most for most in (max_bytes, store.max_object_bytes) if most is not None]
        identity = self._link.ids.new()
        grant = TransferGrant(
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
        opened = _OpenUpload(grant)
        opened.stored = asyncio.create_task(self._store(opened, store, key, expires))
        self._open[identity] = opened
        stored = opened.stored
        stored.add_done_callback(_seen)

        async def completed() -> Mapping[str, Any]:
            return (await asyncio.shield(stored)).wire()

        return grant, completed

    async def _store(
        self, opened: _OpenUpload, store: ObjectStore, key: str, expires: float
    ) -> ObjectInfo:
        grant = opened.grant
        try:
            async with asyncio.timeout(expires):
                return await store.put(
                    key, opened.data(), content_type=grant.content_type, metadata=grant.metadata
                )
        except TimeoutError:
            raise DeadlineError("the upload was not completed in time") from None
        finally:
            # The last frame is sent again if its answer was lost.
            asyncio.get_running_loop().call_later(60, self._open.pop, grant.id, None)

    async def _heard(self, msg: Msg) -> None:
        if len(self._answering) < _MAX_UPLOADS:
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
            elif sequence != opened.expected - 1:  # a repeated frame is answered again
                raise ValidationError(f"frame {opened.expected} was expected, not {sequence}")
        if not eof:
            return _CONTINUE
        stored = await asyncio.shield(opened.stored)
        return canonical.encode({"status": "complete", "info": stored.wire()})

    async def _hand_on(self, opened: _OpenUpload, data: bytes, *, eof: bool) -> None:
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


async def _put(opened: _OpenUpload, frame: Frame) -> None:
    """Queue a frame for storing; raises FabricError if storing has failed."""
    assert opened.stored is not None
    handing = asyncio.ensure_future(opened.frames.put(frame))
    await asyncio.wait((handing, opened.stored), return_when=asyncio.FIRST_COMPLETED)
    if not handing.done():
        handing.cancel()
        opened.stored.result()


def _seen(stored: "asyncio.Task[ObjectInfo]") -> None:
    """Retrieve the exception, so that asyncio does not report it if nobody waits."""
    if not stored.cancelled():
        stored.exception()


def _numbered(headers: Mapping[str, str]) -> tuple[int, bool]:
    number = headers.get(SEQUENCE, "")
    if not (number.isascii() and number.isdecimal() and len(number) < 16):
        raise ValidationError(f"the header {SEQUENCE} is missing or malformed")
    return int(number), headers.get(EOF) == "true"


OpenTransfer = Callable[[Request, Any], Awaitable[tuple[dict[str, Any], Completed]]]
"""Opens the upload for an operation's input: the grant, and a function that waits for the file."""


def transfer_opener(
    uploads: Uploads, link: Link, terms: Terms, declared: Mapping[str, Any]
) -> OpenTransfer:
    """Opens the uploads of an operation; raises NotFoundError if the store is not bound."""
    store = open_store(link, terms, declared["store"])
    expires = declared.get("expiresInMs")

    async def open_upload(request: Request, payload: Any) -> tuple[dict[str, Any], Completed]:
        key = _at(payload, declared["key"])
        kind = _at(payload, declared["contentType"]) if "contentType" in declared else None
        metadata = _at(payload, declared["metadata"]) if "metadata" in declared else None
        if not isinstance(key, str) or not key:
            raise ValidationError(f"the request has no key at {declared['key']}")
        if not (kind is None or isinstance(kind, str)):
            raise ValidationError(f"the value at {declared['contentType']} is not a content type")
        if not (metadata is None or _is_metadata(metadata)):
            raise ValidationError(f"what is at {declared['metadata']} are not texts by name")
        grant, completed = uploads.open(
            request.caller,
            store,
            key,
            expires=EXPIRES_SECONDS if expires is None else expires / 1000,
            max_bytes=declared.get("maxBytes"),
            content_type=kind,
            metadata=metadata,
        )
        return grant.wire(), completed

    return open_upload


def _is_metadata(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(each, str) for each in value.values())


def _at(payload: Any, pointer: str) -> Any:
    """The value at a JSON Pointer, or None."""
    found = payload
    for step in pointer.split("/")[1:]:
        if not isinstance(found, dict):
            return None
        found = found.get(step.replace("~1", "/").replace("~0", "~"))
    return found
