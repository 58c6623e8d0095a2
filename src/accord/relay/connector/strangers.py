"""The rate at which people who are not linked may write to an agent that is open to everybody.

It is kept in the store, so that it holds for all connectors together, and taken in the transaction
that stores the message, so that a repeated message does not count.
"""

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from sqlalchemy import Connection, bindparam, select
from sqlalchemy.dialects import postgresql, sqlite

from accord.relay.connector.tables import stranger_rates
from accord.web.incoming import TokenBuckets

_WINDOW: Final = 61.0
_MICRO: Final = 1_000_000
_OWN: Final = (
    stranger_rates.c.instance == bindparam("of"),
    stranger_rates.c.person == bindparam("by"),
)
_FULL_AT: Final = select(stranger_rates.c.full_at).where(*_OWN)


class Stranger(NamedTuple):
    """Who writes to which instance; `person` is a pseudonym."""

    instance: str
    person: str


def _set(dialect: Any) -> Any:
    row = dialect.insert(stranger_rates)
    key = list(stranger_rates.primary_key)
    return row.on_conflict_do_update(index_elements=key, set_={"full_at": row.excluded.full_at})


_SET: Final = {"postgresql": _set(postgresql), "sqlite": _set(sqlite)}


def take_turns(
    connection: Connection, wanted: Iterable[Stranger], per_minute: int, now: int
) -> list[bool]:
    """Take a turn for each message in order, and say for which there was one; `now` in ms.

    The unit of work has locked the queues of the instances.
    """
    asked = list(wanted)
    seconds = now / 1000
    buckets = TokenBuckets(per_minute / 60, len(asked), per_minute)
    for each in dict.fromkeys(asked):
        full_at = connection.execute(_FULL_AT, {"of": each.instance, "by": each.person}).scalar()
        # No bucket takes longer to fill, unless the clock was set back since.
        if full_at is not None and full_at / _MICRO <= seconds + _WINDOW:
            buckets.load(each, full_at / _MICRO)
    given = []
    for each in asked:
        given.append(not buckets.wait(each, seconds))
        if given[-1]:
            buckets.take(each, seconds)
    changed = sorted({each for each, was_given in zip(asked, given, strict=True) if was_given})
    if changed:
        rows = [
            {**each._asdict(), "full_at": round(buckets.full_at(each) * _MICRO)} for each in changed
        ]
        connection.execute(_SET[connection.dialect.name], rows)
    return given
