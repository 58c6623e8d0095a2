"""The caller's side of transfers: upload a file for a grant, or download one."""

import base64
import binascii
import hashlib
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, Final

from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError

from accord.fabric.link import Link, raise_error
from accord.fabric.rules import payloads, proofs
from accord.fabric.rules.errors import (
    DeadlineError,
    FabricError,
    UnauthorizedError,
    UnavailableError,
    ValidationError,
)
from accord.fabric.rules.transfers import (
    EOF,
    SEQUENCE,
    WINDOW,
    TransferGrant,
    frame_id,
    read_grant,
    unseal,
    window_subject,
)

_FRAME_SECONDS: Final = 20.0
_TRIES: Final = 3


async def upload(link: Link, grant: Any, data: bytes | AsyncIterable[bytes]) -> dict[str, Any]:
    """Upload a file and return the service's description of it.

    Args:
        grant: As answered by the service, such as `Run.transfer`.

    Raises:
        ValidationError: The grant is invalid, or the file is larger than it allows.
        FabricError: The service answered with an error, or no answer came.
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

    Raises:
        ValidationError: The grant is invalid.
        UnauthorizedError: A frame was not encrypted with the grant's key.
        FabricError: The download failed; the chunks so far are incomplete.
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
        body = payloads.parse(answer.data, "the answer")
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
