"""What an agent is, whatever form it has, and how one is found by name.

An agent is called with a turn. It is an async generator that yields text, an async function that
returns text or None, or an object that is called like one of them; a class is made into such an
object once.
"""

import importlib
import inspect
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

from accord.relay.errors import Code, RelayError
from accord.relay.gateway.turn import Turn

Agent = Callable[[Turn], AsyncIterator[str] | Awaitable[str | None]]
"""Gets a turn; yields or returns what it has to say."""

_MEND = "write it as `async def agent(turn)` that yields or returns text"


def prepare(agent: Agent | type[Any]) -> Agent:
    """The agent, ready to be called.

    Raises:
        RelayError: It is no agent.
    """
    made = agent() if isinstance(agent, type) else agent
    if not callable(made):
        raise RelayError(Code.BAD_REQUEST, "the agent cannot be called", mend=_MEND)
    call = made if inspect.isroutine(made) else type(made).__call__
    if inspect.isgeneratorfunction(call):
        raise RelayError(Code.BAD_REQUEST, "the agent is not asynchronous", mend=_MEND)
    return made


async def spoken(agent: Agent, turn: Turn) -> AsyncGenerator[str, None]:
    """What an agent says in a turn, piece by piece.

    Raises:
        RelayError: It gave something that is no text.
    """
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
    """Find an agent by `module:name`.

    Raises:
        RelayError: There is no such module, or nothing of that name in it, or it is no agent.
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
    return prepare(found)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise RelayError(
            Code.BAD_REQUEST, f"the agent gave {type(value).__name__}, not text", mend=_MEND
        )
    return value
