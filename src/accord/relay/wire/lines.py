"""Lines over a socket of messages: section 1 of the notes on the specification.

Several lines may come in one message and one line over several. Owns both directions: `LineReader`
puts lines together, `messages` cuts a line for the wire. It knows nothing of frames.
"""

from collections.abc import Iterator
from typing import Final

MAX_LINE: Final = 8 * 1024 * 1024
"""The longest line that is read, in bytes without its newline."""

MAX_MESSAGE: Final = 1024 * 1024
"""The longest WebSocket message that existing gateways take, in bytes."""

_WHITE: Final = b" \t\r"


class LineReader:
    """Puts lines together from chunks as they come.

    A line above the limit is dropped while it comes in, so that it never takes memory, and reading
    goes on after its newline.

    Attributes:
        dropped: How many lines were too long.
    """

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._begun = bytearray()
        self._is_dropping = False
        self.dropped = 0

    def feed(self, chunk: bytes | str) -> list[bytes]:
        """The lines that this chunk completes, without newlines; blank ones are skipped."""
        if isinstance(chunk, str):
            chunk = chunk.encode("utf-8", "surrogatepass")
        *ended, rest = chunk.split(b"\n")
        lines = []
        for part in ended:
            self._take(part)
            if not self._is_dropping and (line := bytes(self._begun).strip(_WHITE)):
                lines.append(line)
            self._begun.clear()
            self._is_dropping = False
        self._take(rest)
        return lines

    def _take(self, part: bytes) -> None:
        if self._is_dropping:
            return
        if len(self._begun) + len(part) > self._limit:
            self._begun = bytearray()
            self._is_dropping = True
            self.dropped += 1
            return
        self._begun += part


def messages(line: bytes, limit: int = MAX_MESSAGE) -> Iterator[bytes]:
    """Cut a line into messages of at most `limit` bytes, each of them whole UTF-8.

    Args:
        line: What `write_frame` gives.
        limit: At least 4, which is the longest character.
    """
    start = 0
    while len(line) - start > limit:
        end = start + limit
        while line[end] & 0xC0 == 0x80:  # inside a character
            end -= 1
        yield line[start:end]
        start = end
    yield line[start:]
