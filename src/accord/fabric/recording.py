"""Handlers of operations and jobs whose payloads are told to the journal.

RPCs, feeds and events tell it themselves; these run where nobody waits for them.
"""

from collections.abc import Awaitable, Callable
from typing import Any, Literal, Protocol, TypeVar

from accord.fabric.callers import Caller, Callers
from accord.fabric.calls import ABSENT, Calls
from accord.fabric.errors import FabricError


class Working(Protocol):
    """What a handler is told beside the payload."""

    @property
    def id(self) -> str:
        """The id of the operation or job."""
        ...

    @property
    def caller(self) -> str:
        """The session key of whoever started it; empty for the service's own work."""
        ...


C = TypeVar("C", bound=Working)
Run = Callable[[C, Any], Awaitable[Any]]


def recorded_operation(
    calls: Calls, name: str, run: "Run[C]", callers: Callers, own: Caller
) -> "Run[C]":
    """A handler of an operation that tells what it was given and what it came to."""

    def who(session: str) -> Caller:
        if session == own.session:
            return own
        return callers.known(session) or Caller(session, "session", session)

    return _recorded(calls, "operations", name, ("input", "output"), run, who)


def recorded_job(calls: Calls, name: str, run: "Run[C]", own: Caller) -> "Run[C]":
    """A handler of jobs that tells what it was given and what it came to."""
    return _recorded(calls, "jobs", name, ("payload", "result"), run, lambda _: own)


def _recorded(
    calls: Calls,
    kind: Literal["operations", "jobs"],
    name: str,
    parts: tuple[str, str],
    run: "Run[C]",
    who: Callable[[str], Caller],
) -> "Run[C]":
    async def recorded(context: C, payload: Any) -> Any:
        caller, since = who(context.caller), calls.now()
        given, came_to = parts
        await calls.tell(kind, name, given, caller=caller, request_id=context.id, payload=payload)
        result, error = ABSENT, None
        try:
            result = await run(context, payload)
        except FabricError as failure:
            error = failure.type
            raise
        except Exception:
            error = FabricError.type
            raise
        else:
            return result
        finally:
            if result is not ABSENT or error is not None:  # neither: it was cancelled
                await calls.tell(
                    *(kind, name, came_to),
                    caller=caller,
                    request_id=context.id,
                    payload=result,
                    error=error,
                    since=since,
                )

    return recorded
