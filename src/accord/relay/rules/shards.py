"""Which shards of a bot a connector listens to. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Shard:
    """One shard of a bot, numbered from 0."""

    number: int = 0
    count: int = 1


def choose_shards(
    count: int, holders: Mapping[int, str], me: str, connectors: int
) -> frozenset[int]:
    """The shards that a connector listens to, so that all connectors get about as many.

    It keeps what it has up to its share, and takes what nobody has.

    Args:
        count: How many shards there are.
        holders: Who listens to which shard now.
        me: This connector, by its name there.
        connectors: How many connectors there are, this one included.
    """
    share = -(-count // max(1, connectors))
    own = [number for number in range(count) if holders.get(number) == me][:share]
    free = [number for number in range(count) if number not in holders]
    return frozenset(own + free[: share - len(own)])
