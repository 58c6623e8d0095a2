"""Pure decisions of a gateway: its limits, when it dials again, how fast a reply may change.

Time and chance are arguments.
"""

import re
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Final
from urllib.parse import urlsplit

from accord.relay.rules.actions import Result
from accord.relay.rules.connection import REPLACED, RESTARTING, AfterClose, after_close, backoff
from accord.relay.rules.frames import MAX_LINE, MAX_MESSAGE
from accord.relay.rules.splitting import code_blocks

MAX_MESSAGE_BYTES: Final = 2 * MAX_LINE
"""The longest WebSocket message that is read, in bytes; a longer one ends the socket."""


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Limits of one gateway; times are in seconds."""

    # From the dial to the last descriptor.
    handshake: float = 30.0
    # Of an action, including a reconnection.
    outbound: float = 30.0
    # Until the connector confirms that it buffers.
    idle_ack: float = 10.0
    # Until a gateway that is suspended without a hook dials again.
    held: float = 60.0
    # The pause before the first dial after a failure; it doubles.
    first_delay: float = 1.0
    # The longest such pause.
    longest_delay: float = 30.0
    # The longest such pause to a connector on this machine or network, which few others dial.
    near_delay: float = 5.0
    # For running turns to finish when the gateway is stopped.
    drain: float = 30.0
    # Between two probes of the socket, and for the answer to one.
    ping: float = 20.0
    # The shortest pause between two edits, or two messages, of one streamed reply.
    edit: float = 1.0
    # Between two renewals of the typing indicator.
    typing: float = 5.0
    # How many turns run at once; each session has at most one.
    turns: int = 64
    # How many actions are in progress at once.
    pending_outbound: int = 32
    # The longest line that is read.
    line_bytes: int = MAX_LINE
    # The longest action that is sent.
    action_bytes: int = MAX_MESSAGE
    # How often a turn is started that the process did not survive.
    attempts: int = 3
    # How many chats are remembered for messages outside a turn.
    chats: int = 10_000
    # How long a stored action is tried.
    outbox: float = 86_400.0
    # How many stored actions may wait.
    outbox_rows: int = 1000
    # How long a connector that does not say so recognises a repeated request.
    request_window: float = 600.0


_LONGEST_PAUSE: Final = 60.0
_LIMITED: Final = re.compile(r"rate.?limit|too many requests|\b429\b|retry.?after", re.IGNORECASE)
_SECONDS: Final = re.compile(r"retry.?after\D{0,5}(\d{1,6}(?:\.\d{1,6})?)", re.IGNORECASE)


def is_rate_limited(result: Result) -> bool:
    """Whether a platform refused an action because of a rate limit, by number or by text."""
    if result.success:
        return False
    # Other connectors set no number and say it in the text alone.
    return result.retry_after is not None or _LIMITED.search(result.error or "") is not None


def wait_asked(result: Result) -> float:
    """Seconds that a rate limit asks to wait; 0 where it names none."""
    if result.retry_after is not None:
        return result.retry_after
    named = _SECONDS.search(result.error or "")
    return float(named[1]) if named else 0.0


class Pace:
    """When the next change is due; at least `pause` seconds lie between two changes."""

    def __init__(self, pause: float) -> None:
        self._least = pause
        self._pause = pause
        self._due = 0.0

    def wait(self, now: float) -> float:
        """Seconds to wait before the next change."""
        return max(0.0, self._due - now)

    def record(self, result: Result, now: float) -> None:
        """Adapt the pause to the result of a change."""
        if is_rate_limited(result):
            self._pause = min(max(2 * self._pause, 1.0), _LONGEST_PAUSE)
            self._due = now + max(self._pause, min(wait_asked(result), _LONGEST_PAUSE))
        else:
            self._pause = max(self._least, self._pause / 2)
            self._due = now + self._pause


_FAR: Final = 99


@dataclass(frozen=True, slots=True)
class ConnectionEnd:
    """How a connection ended, or failed to begin."""

    # The close code; 0 where there was none.
    code: int
    reason: str
    # Whether its handshake had succeeded.
    handshaken: bool = False


def is_nearby(url: str) -> bool:
    """Whether a connector is on this machine or its network, judged by its URL alone."""
    try:
        host = urlsplit(url).hostname or ""
        return host == "localhost" or ip_address(host).is_private
    except ValueError:
        return False


class Redial:
    """The pauses between the dials of one gateway, shorter to a connector that is `near`."""

    def __init__(self, limits: GatewayLimits, *, near: bool = False) -> None:
        self._limits = limits
        near_delay = limits.near_delay if near else limits.longest_delay
        self._longest = min(near_delay, limits.longest_delay)
        self._attempt = 0
        self._was_handshaken = False
        self._is_retry = False
        self._retried_at = float("-inf")

    def after(self, end: ConnectionEnd, *, now: float, chance: float) -> float | None:
        """Seconds to wait before the next dial; None when there is to be none."""
        if end.handshaken:
            self._attempt, self._was_handshaken, self._is_retry = 0, True, False
        step = after_close(
            end.code, end.reason, handshaken=self._was_handshaken, retried=self._is_retry
        )
        if step is AfterClose.TERMINAL:
            return None
        self._is_retry = step is AfterClose.FRESH_TOKEN
        if self._is_retry and now - self._retried_at > self._limits.longest_delay:
            self._retried_at = now
            return 0.0
        if end.code == RESTARTING and end.handshaken:
            # A planned restart: dial again soon, but not all gateways at the same moment.
            return chance * self._limits.first_delay / 2
        attempt = self._attempt
        self._attempt += 1
        if end.code == REPLACED:
            # Two gateways with one id must not replace each other all the time.
            return backoff(_FAR, chance, longest=self._limits.longest_delay)
        return self.pause(attempt, chance)

    def pause(self, attempt: int, chance: float) -> float:
        """The pause after so many failures."""
        return backoff(attempt, chance, first=self._limits.first_delay, longest=self._longest)


_PARAGRAPH: Final = re.compile(r"\n[ \t]*\n\s*")
# Chinese and Japanese sentences end without white space.
_SENTENCE: Final = re.compile("[.!?\u2026][\"'\u201d\u2019)\\]]*\\s+|[\u3002\uff01\uff1f]|\n")
SHORT_SEGMENT: Final = 160
"""Paragraphs are gathered until they are this long together."""
LONG_SEGMENT: Final = 1200
"""A paragraph that is longer is cut after a sentence."""


def complete_length(text: str) -> int:
    """How much of a growing text, from its start, can be sent as a message of its own."""
    # A block without its closing line may go on.
    fenced = [
        (block.begin, block.after if block.end < block.after else len(text) + 1)
        for block in code_blocks(text)
    ]
    end = _last_outside([match.end() for match in _PARAGRAPH.finditer(text)], fenced)
    if end >= SHORT_SEGMENT:
        return end
    if len(text) < LONG_SEGMENT:
        return 0
    end = _last_outside([match.end() for match in _SENTENCE.finditer(text)], fenced)
    return end if end >= SHORT_SEGMENT else 0


def _last_outside(ends: list[int], fenced: list[tuple[int, int]]) -> int:
    """The last end that is in no code block, or 0; both lists are in order."""
    block = len(fenced) - 1
    for end in reversed(ends):
        while block >= 0 and fenced[block][0] >= end:
            block -= 1
        if block < 0 or end >= fenced[block][1]:
            return end
    return 0
