"""The reply of a turn, shown while the agent writes it.

It is shown as a draft, as one message that grows, or in segments. Nothing of it is lost: what could
not be edited in is sent. Only the last text of a message need be durable, so that an edit that
another will follow is not stored.
"""

import asyncio
from contextlib import suppress
from itertools import pairwise
from typing import Final, Protocol

import structlog

from accord.relay.gateway.rules import Pace, complete_length, is_rate_limited
from accord.relay.rules.actions import Outcome, Result
from accord.relay.rules.frames import Descriptor
from accord.relay.rules.splitting import split_pieces

# The first message waits for a few words more.
_SETTLE: Final = 0.25
_TRIES: Final = 5
# After so many failed edits in a row, the rest is sent at the end.
_FAULTS: Final = 3
_log = structlog.stdlib.get_logger(__name__)


class ReplySink(Protocol):
    """Sends and edits the messages of a reply."""

    async def say(self, content: str, *, is_first: bool) -> Result:
        """Send a message into the chat of the turn."""
        ...

    async def edit(self, message_id: str, content: str, *, is_passing: bool) -> Result:
        """Change a message; `is_passing` if another change will follow."""
        ...

    async def draft(self, content: str) -> Result:
        """Show an unfinished message."""
        ...


class Reply:
    """One streamed reply.

    Args:
        edits: Whether one message may grow in place.
        drafts: Whether it may be shown as a draft; after a refused draft there is no other.
        pause: The shortest time between two changes, in seconds.
    """

    def __init__(
        self,
        speaker: ReplySink,
        descriptor: Descriptor,
        *,
        edits: bool,
        pause: float,
        drafts: bool = False,
    ) -> None:
        self._speaker = speaker
        self._limit = descriptor.max_message_length
        self._unit = descriptor.len_unit
        self._edits = edits
        self._drafts = drafts
        self._drafted = ""
        self._pace = Pace(pause)
        self._text = ""
        self._message_id: str | None = None
        self._shown = ""
        self._said = 0
        self._faults = 0
        self._refusal: Result | None = None
        self._ending = asyncio.Event()
        self._pump: asyncio.Task[None] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether anything was sent."""
        return self._said > 0

    @property
    def refusal(self) -> Result | None:
        """Why it could not be sent, if so; what follows is then dropped."""
        return self._refusal

    async def add(self, text: str) -> None:
        """Append text; waits while much more was written than could be shown."""
        if self._refusal is not None or not text:
            return
        self._text += text
        if self._pump is None or self._pump.done():
            self._pump = asyncio.create_task(self._run())
        if len(self._text) > 4 * self._limit:
            await self._rest()

    async def finish(self) -> None:
        """Show all of it."""
        self._ending.set()
        await self._rest()
        while self._text and self._refusal is None:
            if self._text.rstrip() != self._shown:
                await self._pause()
            await self._show(is_final=True)

    async def cancel(self) -> None:
        """Leave it as it is."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait({self._pump})

    async def _rest(self) -> None:
        if self._pump is None:
            return
        await asyncio.wait({self._pump})
        if not self._pump.cancelled():
            self._pump.result()

    async def _run(self) -> None:
        if not self.has_begun:
            with suppress(TimeoutError):
                async with asyncio.timeout(_SETTLE):
                    await self._ending.wait()
        while self._refusal is None and self._has_news and not self._ending.is_set():
            await self._pause()
            await self._show(is_final=False)

    @property
    def _has_news(self) -> bool:
        if self._drafts:
            return self._text.rstrip() != self._drafted
        if self._edits:
            return self._text.rstrip() != self._shown and self._faults < _FAULTS
        return len(self._text) > self._limit or complete_length(self._text) > 0

    async def _show(self, *, is_final: bool) -> None:
        parts = split_pieces(self._text, self._limit, self._unit)
        if not parts:
            return
        for piece, following in pairwise(parts):
            await self._put(str(piece), must=True)
            self._consume(len(piece.opening) + len(piece.body), following.opening)
            await self._pause()
        # More text may have come meanwhile, which may not fit into this message.
        end = len(parts[-1].opening) + len(parts[-1].body)
        if self._drafts and not is_final:
            await self._draft(self._text[:end].rstrip())
            return
        if not self._edits:
            end = end if is_final else complete_length(self._text[:end])
            await self._put(self._text[:end], must=True)
            self._consume(end)
            return
        await self._put(self._text[:end], must=is_final)
        if is_final or (self._shown and self._message_id is None):
            # The latter on a platform that returns no message ids.
            self._edits = self._message_id is not None
            self._consume(end)

    def _consume(self, count: int, opening: str = "") -> None:
        """Remove the beginning of the text; the next message is a new one."""
        if count:
            self._text = opening + self._text[count:]
            self._message_id, self._shown, self._drafted = None, "", ""

    async def _draft(self, content: str) -> None:
        if not content or content == self._drafted:
            self._drafted = self._text.rstrip()
            return
        result = await self._speaker.draft(content)
        self._pace.record(result, asyncio.get_running_loop().time())
        if result.success:
            self._drafted = content
        elif not is_rate_limited(result):
            self._drafts = False

    async def _put(self, content: str, *, must: bool) -> None:
        content = content.rstrip()
        if not content.strip() or content == self._shown or self._refusal is not None:
            return
        for tries_left in reversed(range(_TRIES if must else 1)):
            result = await self._change(content, is_passing=not must)
            if result.success:
                return
            if result.outcome is Outcome.UNKNOWN and (must or self._message_id is None):
                # It may have been shown, and is not repeated; what follows is still said.
                self._said += 1
                self._shown = content
                _log.warning("whether a reply was sent is unknown", error=result.error)
                return
            if is_rate_limited(result):
                if not must:
                    return
            elif self._message_id is None:
                tries_left = 0
            elif must:
                self._message_id = None  # it can no longer be edited: send a new one
            else:
                self._faults += 1
                return
            if not tries_left:
                self._refusal = result
                _log.warning("a reply could not be sent", error=(result.error or "")[:200])
                return
            await self._pause()

    async def _change(self, content: str, *, is_passing: bool) -> Result:
        if self._message_id is None:
            result = await self._speaker.say(content, is_first=self._said == 0)
        else:
            result = await self._speaker.edit(self._message_id, content, is_passing=is_passing)
        self._pace.record(result, asyncio.get_running_loop().time())
        if result.success:
            self._said += 1
            self._faults = 0
            self._shown = content
            self._message_id = self._message_id or result.message_id
        return result

    async def _pause(self) -> None:
        await asyncio.sleep(self._pace.wait(asyncio.get_running_loop().time()))
