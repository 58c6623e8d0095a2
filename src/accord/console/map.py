"""The map of a community: its stations, what each offers, whether it is reached, and its load.

Drawn on the server as SVG. Others stand on an ellipse around this station, in the order of their
ids, so that nobody moves when somebody's state changes.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from accord.console.messages import mark
from accord.console.templates import MemberNames

_MOST: Final = 16
_WIDTH, _HEIGHT = 680, 300
_OFFERS: Final = (
    ("llm.", mark("models")),
    ("embed.", mark("embeddings")),
    ("experimental.rag.", mark("documents")),
    ("file.", mark("files")),
    ("market.", mark("market")),
    ("chat.", mark("chat")),
)
_OWN: Final = mark("this station")
_MOST_LETTERS: Final = 18


@dataclass(frozen=True, slots=True)
class Station:
    """A station on the map.

    Attributes:
        way: How it is reached, in a word.
        load: How busy it says that its processors are, from 0 to 100; None if unknown.
    """

    name: str
    label: str
    x: int
    y: int
    is_here: bool
    is_own: bool
    way: str
    offers: tuple[str, ...]
    load: int | None

    @property
    def initial(self) -> str:
        """The first letter of its name."""
        return self.name[:1].upper()


@dataclass(frozen=True, slots=True)
class CommunityMap:
    """The stations that are drawn, this one first, and how many more there are."""

    stations: tuple[Station, ...]
    more: int
    width: int = _WIDTH
    height: int = _HEIGHT


def community_map(
    members: Sequence[Mapping[str, Any]],
    peers: Iterable[Mapping[str, Any]],
    own: str,
    own_offers: Sequence[str],
    names: MemberNames,
) -> CommunityMap:
    """Place the members of a community; who was met most recently is drawn first."""
    met = {each["node_id"]: each for each in peers}
    others = [each["node_id"] for each in members if each["node_id"] != own]
    others.sort(key=lambda each: met[each]["seen_seconds_ago"] if each in met else math.inf)
    shown = sorted(others[:_MOST])
    placed = [_station(names.name(own), _WIDTH // 2, _HEIGHT // 2 - 10, _OWN, own_offers, None)]
    for number, node_id in enumerate(shown):
        angle = 2 * math.pi * number / len(shown) - math.pi / 2 + math.pi / max(4, len(shown))
        x = round(_WIDTH / 2 + math.cos(angle) * (_WIDTH / 2 - 90))
        y = round(_HEIGHT / 2 - 10 + math.sin(angle) * (_HEIGHT / 2 - 50))
        peer = met.get(node_id)
        offers = () if peer is None else peer["capabilities"]
        placed.append(_station(names.name(node_id), x, y, _way(peer), offers, _load(peer)))
    return CommunityMap(tuple(placed), len(others) - len(shown))


def _station(
    name: str, x: int, y: int, way: str, offers: Iterable[str], load: int | None
) -> Station:
    names = tuple(offers)
    short = name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 1]}…"
    return Station(
        name,
        short,
        x,
        y,
        is_here=way.startswith("reached"),
        is_own=way == _OWN,
        way=way,
        offers=tuple(
            word for prefix, word in _OFFERS if any(each.startswith(prefix) for each in names)
        ),
        load=load,
    )


def _way(peer: Mapping[str, Any] | None) -> str:
    if peer is None:
        return mark("not met yet")
    if peer["failures"]:
        return mark("away")
    return mark("reached directly") if peer["endpoints"] else mark("reached when it calls")


def _load(peer: Mapping[str, Any] | None) -> int | None:
    if peer is None or peer["failures"]:
        return None
    cpu = peer["load"].get("cpu")
    if not isinstance(cpu, int | float) or isinstance(cpu, bool) or not math.isfinite(cpu):
        return None
    return round(min(max(cpu, 0.0), 1.0) * 100)
