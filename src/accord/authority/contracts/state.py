"""`trellis.state@v1`: named state of a contract, kept for whoever holds the session.

Whose state it is follows from the caller's session and never from the request: the contract that
the session presented, and its holder. A `value` store has no key, a `map` store always has one.
Revisions are for compare-and-set: 0 stands for "nothing is there".
"""

from typing import Any

from pydantic import Field

from accord.authority.contracts.wire import Payload
from accord.contracts.authoring import Contract
from accord.kernel.canonical import MAX_INTEGER

ID = "trellis.state@v1"

MAX_KEY = 512
MAX_PAGE = 500


class StateRef(Payload):
    """Which entry of which store."""

    store: str = Field(min_length=1, max_length=256)
    key: str | None = Field(default=None, max_length=MAX_KEY)


class StateEntry(Payload):
    """What is kept: written under `stateVersion`, which may be an older one than the contract's."""

    key: str | None = None
    value: Any
    state_version: str
    revision: int
    updated_at: float


class StateGetReply(Payload):
    """The entry, where there is one."""

    entry: StateEntry | None = None


class StatePut(StateRef):
    """A value of the contract's current version; conditional where a revision is expected."""

    value: Any
    expected_revision: int | None = Field(default=None, ge=0, le=MAX_INTEGER)


class StatePutReply(Payload):
    """Whether it was written, at which revision; what was there instead, where it was not."""

    applied: bool
    revision: int
    found: StateEntry | None = None


class StateDelete(StateRef):
    """Which entry to delete; conditional where a revision is expected."""

    expected_revision: int | None = Field(default=None, ge=1, le=MAX_INTEGER)


class StateDeleteReply(Payload):
    """Whether something was deleted; what was there instead, where a condition failed."""

    applied: bool
    found: StateEntry | None = None


class StateList(Payload):
    """Entries of a map store in the order of their keys."""

    store: str = Field(min_length=1, max_length=256)
    prefix: str | None = Field(default=None, max_length=MAX_KEY)
    after: str | None = Field(default=None, max_length=MAX_KEY)
    limit: int = Field(default=100, ge=1, le=MAX_PAGE)


class StateListReply(Payload):
    """A page; `next` is the `after` of the following one, where there is one."""

    entries: list[StateEntry]
    next: str | None = None


def contract() -> Contract:
    """The contract, as it is written."""
    state = Contract(
        ID,
        display_name="Trellis state",
        description="Keep the named state that contracts declare, for each holder of a session.",
    )
    refusals = ["NotFoundError", "ValidationError"]
    for kind in (*refusals, "ConflictError"):
        state.error(kind)
    state.rpc("State.Get", StateRef, StateGetReply, errors=refusals)
    state.rpc("State.Put", StatePut, StatePutReply, errors=[*refusals, "ConflictError"])
    state.rpc("State.Delete", StateDelete, StateDeleteReply, errors=refusals)
    state.rpc("State.List", StateList, StateListReply, errors=refusals)
    return state
