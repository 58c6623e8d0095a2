"""One accepted WebSocket under full control: it can also be cut without a word."""

import asyncio
import contextlib
import logging
import zlib
from collections import deque
from http import HTTPStatus

from websockets.exceptions import WebSocketException
from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import State
from websockets.server import ServerProtocol

_CHUNK = 64 * 1024
_MAX_FRAME = 1024 * 1024
_LINGER = 2.0

_quiet = logging.getLogger(f"{__name__}.frames")
_quiet.setLevel(logging.INFO)  # tests look for tokens in what is logged


class GatewaySocket:
    """The service's end of a WebSocket.

    Attributes:
        path: What was asked for, with its query.
        closed_with: The close code that this side sent.
        left_with: The close code that the other side sent.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.path = ""
        self.closed_with: int | None = None
        self.left_with: int | None = None
        self._reader = reader
        self._writer = writer
        self._protocol = ServerProtocol(max_size=_MAX_FRAME, logger=_quiet)
        self._frames: deque[Frame] = deque()
        self._stream: zlib._Compress | None = None

    def accept(self, head: bytes) -> bool:
        """Answer the request to upgrade; whether it was a good one."""
        self._protocol.receive_data(head)
        asked = [each for each in self._protocol.events_received() if isinstance(each, Request)]
        if asked:
            self.path = asked[0].path
            self._protocol.send_response(self._protocol.accept(asked[0]))
        self._flush()
        return self.is_open

    def refuse(self, head: bytes, status: int) -> None:
        """Answer the request to upgrade with an error."""
        self._protocol.receive_data(head)
        self._protocol.send_response(self._protocol.reject(HTTPStatus(status), ""))
        self._flush()

    @property
    def is_open(self) -> bool:
        """Whether anything can be sent."""
        return self._protocol.state is State.OPEN and not self._writer.is_closing()

    def send(self, data: bytes) -> None:
        """Write a message; into an ended socket it is written in vain."""
        if not self.is_open:
            return
        if self._stream is None:
            self._protocol.send_text(data)
        else:
            packed = self._stream.compress(data) + self._stream.flush(zlib.Z_SYNC_FLUSH)
            self._protocol.send_binary(packed)
        self._flush()

    def compress(self) -> None:
        """Send everything as one compressed stream from now on (`zlib-stream`)."""
        self._stream = zlib.compressobj()

    async def receive(self) -> bytes | None:
        """The next message; None when the socket has ended."""
        parts: list[bytes] = []
        while True:
            while self._frames:
                frame = self._frames.popleft()
                if frame.opcode in (Opcode.TEXT, Opcode.BINARY, Opcode.CONT):
                    parts.append(bytes(frame.data))
                    if frame.fin:
                        return b"".join(parts)
            if not self.is_open or not await self._read_more():
                return None

    def close(self, code: int, reason: str) -> None:
        """End it in due form."""
        if self.is_open:
            self.closed_with = code
            self._protocol.send_close(code, reason)
            self._flush()

    def abort(self) -> None:
        """End it at once, without a close frame."""
        self._writer.transport.abort()

    async def linger(self) -> None:
        """After a close, wait a little for the other side to close, too."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                while self._protocol.close_rcvd is None and await self._read_more():
                    pass

    async def _read_more(self) -> bool:
        try:
            data = await self._reader.read(_CHUNK)
        except ConnectionError:
            return False
        if not data:
            self._protocol.receive_eof()
            return False
        with contextlib.suppress(WebSocketException):  # a broken frame fails the protocol
            self._protocol.receive_data(data)
        for each in self._protocol.events_received():
            if isinstance(each, Frame):
                self._frames.append(each)
        if self._protocol.close_rcvd is not None:
            self.left_with = self._protocol.close_rcvd.code
        self._flush()
        return True

    def _flush(self) -> None:
        for data in self._protocol.data_to_send():
            if self._writer.is_closing():
                return
            if data:
                self._writer.write(data)
