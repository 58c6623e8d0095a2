"""An agent that is a command: the event on its standard input, the answer on its output.

Owns the life of the process: it leads a group of its own, and the whole group ends when the turn is
interrupted, takes too long or says too much. Its errors go where the gateway's own go.
"""

import asyncio
import codecs
import os
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from accord.kernel import canonical
from accord.relay.errors import Code, RelayError
from accord.relay.gateway.agents import Agent
from accord.relay.gateway.turn import Turn

_GRACE_SECONDS: Final = 2.0
_CHUNK: Final = 64 * 1024
# What the gateway was configured with is not the command's to know.
_WITHHELD: Final = "GATEWAY_RELAY_"


def command_agent(
    argv: Sequence[str],
    *,
    timeout: float = 300.0,
    output_bytes: int = 1024 * 1024,
    environment: Mapping[str, str] | None = None,
) -> Agent:
    """An agent that runs a command for each event and says what the command prints.

    The command reads one line of JSON: `event`, `session_key`, `description` and `attempt`.

    Args:
        argv: The command and its arguments; no shell is involved unless it is one.
        timeout: How many seconds it may take.
        output_bytes: How much it may print.
        environment: Its environment; that of this process, but for the gateway's own settings,
            if None.

    Raises:
        RelayError: There is no command.
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


async def _start(words: Sequence[str], environment: Mapping[str, str] | None) -> Process:
    if environment is None:
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith(_WITHHELD)
        }
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
        async with asyncio.timeout_at(deadline):  # around nothing that yields
            chunk = await process.stdout.read(_CHUNK)
        most -= len(chunk)
        if most < 0:
            raise _failed(name, "printed too much")
        if text := decoder.decode(chunk, final=not chunk):
            yield text


async def _end(process: Process) -> None:
    """End the process and everything that it started, kindly at first."""
    _signal(process, signal.SIGTERM)
    with suppress(TimeoutError):
        async with asyncio.timeout(_GRACE_SECONDS):
            await process.wait()
    _signal(process, signal.SIGKILL)  # also what it left behind
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
