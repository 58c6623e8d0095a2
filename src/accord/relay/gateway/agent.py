"""Agents: the `Turn` that they get, its reply, the forms that they may have, and loading them.

An agent is called with a turn. It is an async generator that yields text, an async function that
returns text or None, or an object or class that is called like one of them; or a command that
reads the event on its standard input and prints the answer.

A reply is shown while the agent writes it: as a draft, as one message that grows, or in segments.
Nothing of it is lost: what could not be edited in is sent. Only the last text of a message need be
durable, so that an edit that another will follow is not stored.
"""

import asyncio
import codecs
import hashlib
import importlib
import inspect
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from itertools import pairwise
from typing import Any, Final, Protocol

import structlog

from accord.kernel import canonical
from accord.relay.errors import Code, RelayError
from accord.relay.gateway.inbox import ReceivedEvent
from accord.relay.gateway.limits import GatewayLimits
from accord.relay.gateway.outbox import ChatAddress, RecentChats, Requests
from accord.relay.rules.egress import Pace, is_rate_limited
from accord.relay.rules.frames import (
    Action,
    Descriptor,
    Edit,
    FollowUp,
    GetChatInfo,
    Outcome,
    Result,
    Send,
    Typing,
    write_action,
)
from accord.relay.rules.messages import MessageEvent, SessionSource
from accord.relay.rules.splitting import complete_length, split_pieces, split_text

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


class Turn:
    """One event and its answer.

    Attributes:
        attempt: How often this turn was started, from 1; above 1 the process ended during an
            earlier attempt, and parts of the answer may have been sent. With a stored inbox, an
            action that is asked for again in the same words is not done again.
        cancelled: Whether it was interrupted, for work in threads; async code is cancelled.
    """

    def __init__(
        self,
        delivery: ReceivedEvent,
        descriptor: Descriptor,
        requests: Requests,
        chats: RecentChats,
        limits: GatewayLimits,
        interrupt: Callable[[str], bool],
    ) -> None:
        self.event: MessageEvent = delivery.event
        self.session_key = delivery.session_key
        self.descriptor = descriptor
        self.attempt = delivery.attempt
        self.cancelled = False
        self._place = ChatAddress.of(delivery)
        self._capability = delivery.capability
        self._requests = requests
        self._chats = chats
        self._limits = limits
        self._interrupt = interrupt
        self._id = delivery.turn
        self._key = delivery.turn_key
        self._asked: Counter[str] = Counter()

    def cancel(self) -> None:
        """End this turn, as an interrupt does."""
        self._interrupt(self.session_key)

    @property
    def source(self) -> SessionSource:
        """Where the message comes from."""
        return self.event.source

    @property
    def description(self) -> str:
        """Where the agent is speaking, for its system prompt.

        It includes the platform's own hint. If the platform's descriptor is `pii_safe`, it names no
        person and no chat.
        """
        descriptor, source = self.descriptor, self.source
        place = f"You are in a {source.chat_type} on {descriptor.label}"
        if descriptor.pii_safe:
            told = [f"{place}."]
        else:
            name = f" called {source.chat_name!r}" if source.chat_name else ""
            told = [f"{place}{name}."]
            if source.chat_topic:
                told.append(f"Its topic is {source.chat_topic!r}.")
            if source.user_name or source.user_id:
                told.append(f"You are talking to {source.user_name or source.user_id}.")
        return " ".join([*told, descriptor.platform_hint]).strip()

    async def reply(self, text: str) -> Result:
        """Answer with a text, in as many messages as the platform needs; the last one's result.

        If the outcome of one of them is unknown, the others are sent, and it is unknown for all.
        """
        result = Result(False, error="there is nothing to say")
        unknown: Result | None = None
        parts = split_text(text, self.descriptor.max_message_length, self.descriptor.len_unit)
        for number, part in enumerate(parts):
            result = await self.say(part, is_first=number == 0)
            if result.outcome is Outcome.UNKNOWN:
                unknown = result
            elif not result.success:
                break
        return unknown if unknown is not None and result.success else result

    async def outcome(self, result: Result) -> Result:
        """Wait for the end of an action whose result says that it is queued.

        An action is queued if it is stored and was not sent within 30 seconds.
        """
        if not result.queued or result.request_id is None:
            return result
        return await self._requests.outcome(result.request_id) or result

    async def send(
        self, content: str, *, chat_id: str | None = None, reply_to: str | None = None
    ) -> Result:
        """Send one message as it is, into the chat of the turn or another."""
        chat, place = self._chat(chat_id)
        return await self._do(Send(chat, content, reply_to, place.metadata), place)

    async def edit(
        self,
        message_id: str,
        content: str,
        *,
        chat_id: str | None = None,
        is_passing: bool = False,
    ) -> Result:
        """Change a message that this agent sent; `is_passing` if another change will follow."""
        chat, place = self._chat(chat_id)
        action = Edit(chat, message_id, content, place.metadata)
        return await self._do(action, place, is_passing=is_passing)

    async def typing(self) -> Result:
        """Show that an answer is coming, for a few seconds."""
        return await self._do(Typing(self.source.chat_id), self._place)

    async def draft(self, content: str) -> Result:
        """Show an unfinished answer, where the platform has drafts."""
        return await self._do(Typing(self.source.chat_id, content), self._place)

    async def follow_up(self, kind: str, content: str) -> Result:
        """Use a capability that came with the event; the connector keeps its value."""
        metadata = dict(self._place.metadata)
        if self.event.message_id:
            metadata["message_id"] = self.event.message_id
        action = FollowUp(self.session_key, kind, content, metadata)
        return await self._do(action, self._place)

    async def chat_info(self, chat_id: str | None = None) -> Mapping[str, Any] | None:
        """The name and type of a chat, and what else the platform knows; None if it fails."""
        chat, place = self._chat(chat_id)
        result = await self._do(GetChatInfo(chat), place)
        return result.chat_info if result.success else None

    async def create_handoff_thread(self, name: str) -> str | None:
        """Open a thread to hand the conversation over to; None if that fails.

        The wire has no action that opens a thread. It is asked for as a capability, which a
        connector without it refuses.
        """
        if not self.descriptor.supports_threads:
            return None
        result = await self.follow_up(f"{self._place.platform}.create_handoff_thread", name)
        return result.message_id if result.success else None

    async def say(self, content: str, *, is_first: bool) -> Result:
        """Send a part of the answer: by the capability that came with the event, else as usual."""
        if self._capability is not None:
            result = await self.follow_up(self._capability, content)
            if result.success or result.outcome is Outcome.UNKNOWN:
                return result
            self._capability = None  # used up or expired
        answers = is_first and not self.source.is_dm
        return await self.send(content, reply_to=self.event.message_id if answers else None)

    def open_reply(self) -> Reply:
        """A reply that is shown while it is written."""
        edits = self.descriptor.supports_edit and self._capability is None
        drafts = self.descriptor.supports_draft_streaming and self.source.is_dm
        pause = self._limits.edit
        return Reply(self, self.descriptor, edits=edits, pause=pause, drafts=drafts)

    def _chat(self, chat_id: str | None) -> tuple[str, ChatAddress]:
        if chat_id is None or chat_id == self.source.chat_id:
            return self.source.chat_id, self._place
        return chat_id, self._chats.find(chat_id)

    async def _do(self, action: Action, place: ChatAddress, *, is_passing: bool = False) -> Result:
        return await self._requests.perform(
            action,
            place.platform,
            place.bot_id,
            request_id=self._request_id(action, place),
            chat_id=self.source.chat_id if isinstance(action, FollowUp) else None,
            is_passing=is_passing,
        )

    def _request_id(self, action: Action, place: ChatAddress) -> str | None:
        """A name that the same action has in every attempt of this turn."""
        if self._id is None:
            return None
        try:
            told = [write_action(action), place.platform, place.bot_id]
            digest = _action_digest(canonical.encode(told), self._key)
        except canonical.CanonicalError:
            return None  # it cannot be sent
        self._asked[digest] += 1
        return f"{self._id}-{digest}-{self._asked[digest]}"


def _action_digest(action: bytes, key: bytes | None) -> str:
    """24 hexadecimal digits from which nobody without the key can guess what was written."""
    if key is None:
        # A turn that an older version has begun: its actions keep their ids.
        return hashlib.sha256(action).hexdigest()[:24]
    return hashlib.blake2b(action, key=key, digest_size=12).hexdigest()


Agent = Callable[[Turn], AsyncIterator[str] | Awaitable[str | None]]
"""Gets a turn; yields or returns what it has to say."""

_MEND = "write it as `async def agent(turn)` that yields or returns text"


def prepare_agent(agent: Agent | type[Any]) -> Agent:
    """The agent, instantiated if it is a class; raises RelayError if it is none."""
    made = agent() if isinstance(agent, type) else agent
    if not callable(made):
        raise RelayError(Code.BAD_REQUEST, "the agent cannot be called", mend=_MEND)
    call = made if inspect.isroutine(made) else type(made).__call__
    if inspect.isgeneratorfunction(call):
        raise RelayError(Code.BAD_REQUEST, "the agent is not asynchronous", mend=_MEND)
    return made


async def run_agent(agent: Agent, turn: Turn) -> AsyncGenerator[str, None]:
    """The text of an agent in a turn, piece by piece; raises RelayError for other values."""
    answer: Any = agent(turn)
    if isinstance(answer, AsyncGenerator):
        async with aclosing(answer):  # so that a turn that is cut short ends the agent at once
            async for text in answer:
                yield _text(text)
    elif isinstance(answer, AsyncIterator):
        async for text in answer:
            yield _text(text)
    elif inspect.isawaitable(answer):
        text = await answer
        if text is not None:
            yield _text(text)
    else:
        raise RelayError(
            Code.BAD_REQUEST, f"the agent gave {type(answer).__name__}, not text", mend=_MEND
        )


def load_agent(name: str) -> Agent:
    """Import an agent by `module:name`.

    Raises:
        RelayError: There is no such module or name, or it is no agent.
    """
    module_name, _, path = name.partition(":")
    if not module_name or not path:
        raise RelayError(
            Code.BAD_REQUEST, f"{name[:80]!r} names no agent", mend="write it like module:name"
        )
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise RelayError(
            Code.NOT_FOUND,
            f"there is no module {error.name}",
            where=name,
            mend="run it from the folder that holds the module, or install it",
        ) from error
    except (ImportError, ValueError, TypeError) as error:
        raise RelayError(
            Code.BAD_REQUEST, f"the module cannot be imported ({error})", where=name
        ) from error
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise RelayError(
                Code.NOT_FOUND, f"the module has no {path}", where=name, mend=_MEND
            ) from None
    return prepare_agent(found)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise RelayError(
            Code.BAD_REQUEST, f"the agent gave {type(value).__name__}, not text", mend=_MEND
        )
    return value


_GRACE_SECONDS: Final = 2.0
_CHUNK: Final = 64 * 1024
# The gateway's own settings are withheld from the command.
_WITHHELD: Final = "GATEWAY_RELAY_"


def command_agent(
    argv: Sequence[str],
    *,
    timeout: float = 300.0,
    output_bytes: int = 1024 * 1024,
    environment: Mapping[str, str] | None = None,
) -> Agent:
    """An agent that runs a command for each event and answers with its output.

    The command reads one line of JSON: `event`, `session_key`, `description` and `attempt`.

    Args:
        argv: The command and its arguments; it is run without a shell.
        timeout: Seconds that it may take.
        output_bytes: How much it may print.
        environment: None for that of this process without the gateway's own settings.

    Raises:
        RelayError: `argv` is empty.
    """
    words = tuple(argv)
    if not words:
        raise RelayError(Code.BAD_REQUEST, "there is no command", mend="give at least its name")

    async def agent(turn: Turn) -> AsyncIterator[str]:
        process = await _start(words, environment)
        feeding = asyncio.create_task(_feed(process, turn))
        has_ended = False
        try:
            deadline = asyncio.get_running_loop().time() + timeout
            try:
                async for text in _output(process, words[0], output_bytes, deadline):
                    yield text
                async with asyncio.timeout_at(deadline):
                    code = await process.wait()
            except TimeoutError:
                raise _failed(words[0], f"did not end within {timeout:g} seconds") from None
            has_ended = True
        finally:
            feeding.cancel()
            if not has_ended:
                await asyncio.shield(_end(process))
        if code:
            raise _failed(words[0], f"ended with exit code {code}")

    return agent


def public_environment() -> dict[str, str]:
    """The environment of this process without the gateway's own settings."""
    return {name: value for name, value in os.environ.items() if not name.startswith(_WITHHELD)}


async def _start(words: Sequence[str], environment: Mapping[str, str] | None) -> Process:
    if environment is None:
        environment = public_environment()
    try:
        return await asyncio.create_subprocess_exec(
            *words, stdin=PIPE, stdout=PIPE, env=environment, start_new_session=True
        )
    except (OSError, ValueError) as error:
        raise _failed(words[0], f"cannot be run ({error})") from error


async def _feed(process: Process, turn: Turn) -> None:
    told = {
        "event": turn.event.to_dict(),
        "session_key": turn.session_key,
        "description": turn.description,
        "attempt": turn.attempt,
    }
    assert process.stdin is not None
    with suppress(BrokenPipeError, ConnectionResetError):  # it need not read
        process.stdin.write(canonical.encode(told) + b"\n")
        await process.stdin.drain()
    process.stdin.close()


async def _output(process: Process, name: str, most: int, deadline: float) -> AsyncIterator[str]:
    assert process.stdout is not None
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    chunk = b"first"
    while chunk:
        async with asyncio.timeout_at(deadline):  # must not span a yield
            chunk = await process.stdout.read(_CHUNK)
        most -= len(chunk)
        if most < 0:
            raise _failed(name, "printed too much")
        if text := decoder.decode(chunk, final=not chunk):
            yield text


async def _end(process: Process) -> None:
    """Terminate the process group; kill it if it does not end in time."""
    _signal(process, signal.SIGTERM)
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE_SECONDS):
            await process.wait()
    _signal(process, signal.SIGKILL)  # also its children
    assert process.stdout is not None
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE_SECONDS):
            await process.wait()
            while await process.stdout.read(_CHUNK):
                pass


def _signal(process: Process, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _failed(name: str, what: str) -> RelayError:
    return RelayError(Code.UNAVAILABLE, f"the command {name[:80]} {what}")
