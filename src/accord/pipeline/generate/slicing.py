"""A history in slices, for whatever must come to the same end in many runs as in one.

What is hard for an incremental reader comes later than it was written: revocations, the second
event of a fork, and some of everything. Contracts come first, since calls are judged by them.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import replace
from random import Random
from typing import Any, Final

from accord.kernel import canonical
from accord.pipeline.errors import PipelineError
from accord.pipeline.generate.arrivals import Portion, Store
from accord.pipeline.generate.chronicle import REVOKED
from accord.pipeline.streams import COMMUNITY_EVENTS, CONTRACTS_HISTORY
from accord.storage import Entry

_LATE: Final = 0.03


def slices(portions: Iterable[Portion], count: int, seed: int) -> list[list[Portion]]:
    """Split a history into batches, each of them ready to land after the one before.

    Every record is in just one of them, numbered anew in the order in which it comes now; so the
    truth names it by id and digest, no longer by its number.

    Raises:
        PipelineError: There are to be less than one.
    """
    if count < 1:
        raise PipelineError("a history is split into one slice at least")
    records = [(each.store, entry) for each in portions for entry in each.entries]
    sizes = Counter(entry.stream for _, entry in records)
    passed: Counter[str] = Counter()
    chance = Random(f"{seed}/slices")  # noqa: S311 - a seed must give it again
    links: set[tuple[Any, Any]] = set()
    batches: list[list[tuple[Store, Entry]]] = [[] for _ in range(count)]
    for store, entry in records:
        stream = entry.stream
        turn = passed[stream] * count // sizes[stream]
        passed[stream] += 1
        if stream == CONTRACTS_HISTORY:
            turn = 0
        elif chance.random() < _LATE or (stream == COMMUNITY_EVENTS and _is_hard(entry, links)):
            turn = chance.randrange(min(turn + 1, count - 1), count)
        batches[turn].append((store, entry))
    return _numbered(batches)


def _is_hard(entry: Entry, links: set[tuple[Any, Any]]) -> bool:
    try:
        value = canonical.decode(entry.body)
    except canonical.CanonicalError:
        return False
    event = value.get("event", value) if isinstance(value, dict) else None
    if not isinstance(event, dict):
        return False
    link = (str(event.get("author")), str(event.get("author_seq")))
    is_second = link in links
    links.add(link)
    return is_second or event.get("event_type") == REVOKED


def _numbered(batches: list[list[tuple[Store, Entry]]]) -> list[list[Portion]]:
    heads: Counter[tuple[str, Store]] = Counter()
    made = []
    for batch in batches:
        portions: dict[tuple[str, Store], list[Entry]] = defaultdict(list)
        for store, entry in batch:
            key = entry.stream, store
            heads[key] += 1
            portions[key].append(replace(entry, seq=heads[key]))
        made.append([Portion(*key, entries) for key, entries in portions.items()])
    return made
