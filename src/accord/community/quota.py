"""Daily quotas per author, and the free disk space that content needs."""

import shutil
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from accord.community.errors import Code, CommunityError
from accord.community.log_state import LogState
from accord.community.proofs import ProofOutcome
from accord.community.rules.chains import MEMBERSHIP_TYPES
from accord.community.rules.event import Position
from accord.community.settings import LogLimits
from accord.community.store import ProvenEvent
from accord.kernel.clock import Clock

DAY_SECONDS: Final = 86_400

QUOTA: Final = "quota"
DISK: Final = "disk"
EARLY: Final = "early"
"""Why events are not taken for now, as figures name it."""


_Key = tuple[str, bool]
"""An author, or nobody where it is no member, and whether its membership events are meant."""


class Quota:
    """Counts what a log has accepted today.

    Authors that neither are nor were members share one budget.
    """

    def __init__(self, limits: LogLimits, clock: Clock, folder: Path, folding: LogState) -> None:
        self.refused: Counter[str] = Counter()
        self._limits = limits
        self._clock = clock
        self._folder = folder
        self._folding = folding
        self._used: Counter[_Key] = Counter()
        self._reserved: dict[bytes, _Key] = {}
        self._day = self._today()
        self._lifts = 0

    @property
    def begin_of_day(self) -> float:
        """When the counted day began, in seconds since the epoch."""
        return float(self._today() * DAY_SECONDS)

    @property
    def largest_share(self) -> float:
        """The largest used fraction of any author's budget."""
        most = self._limits.author_bytes_per_day
        self._turn()
        return max(self._used.values(), default=0) / most if most else 0.0

    def load(self, taken: Iterable[tuple[str, str, int]]) -> None:
        """Count what was accepted today before the log was opened: author, stage and size."""
        for author, stage, size in taken:
            self._used[self._key(author, is_membership=stage == "membership")] += size

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Accept any amount meanwhile, for imports by the owner."""
        self._lifts += 1
        try:
            yield
        finally:
            self._lifts -= 1

    def has_room(self, outcomes: Sequence[ProofOutcome]) -> bool:
        """Whether all events fit, even if none of them is a duplicate."""
        self._turn()
        wanted: Counter[_Key] = Counter()
        for each in outcomes:
            if isinstance(each, ProvenEvent):
                wanted[self._key_of(each)] += len(each.body)
        return not self._is_full() and not any(
            self._exceeds(key, size) for key, size in wanted.items()
        )

    def admit(
        self, outcomes: Sequence[ProofOutcome], known: Container[Position], *, unlimited: bool
    ) -> list[ProofOutcome]:
        """Refuse events that exceed the quota; the rest counts until `settle` releases it.

        Positions in `known` are stored already and cost nothing. While this node catches up
        (`unlimited`), only the disk is checked.
        """
        self._turn()
        is_full = self._is_full()
        unlimited = unlimited or self._lifts > 0
        return [
            each
            if isinstance(each, CommunityError) or each.event.position in known
            else self._judge(each, is_full=is_full, unlimited=unlimited) or each
            for each in outcomes
        ]

    def check(self, author: str, event_type: str) -> None:
        """Raise `capacity_exceeded` if an author may not add another event."""
        self._turn()
        is_membership = event_type in MEMBERSHIP_TYPES
        if not is_membership and self._is_full():
            raise self._no_room()
        if self._exceeds(self._key(author, is_membership=is_membership), 1):
            raise self._too_much()

    def take(self, proven: Iterable[ProvenEvent]) -> None:
        """Count events of this node, which were not admitted."""
        for each in proven:
            self._used[self._key_of(each)] += len(each.body)

    def settle(self, proven: ProvenEvent, *, stored: bool) -> None:
        """Release an admitted event unless it was new and stored."""
        reserved = self._reserved.pop(proven.event.digest, None)
        if reserved is not None and not stored:
            self._used[reserved] = max(0, self._used[reserved] - len(proven.body))

    def _judge(
        self, proven: ProvenEvent, *, is_full: bool, unlimited: bool
    ) -> CommunityError | None:
        key = self._key_of(proven)
        if is_full and not key[1]:
            self.refused[DISK] += 1
            return self._no_room()
        if not unlimited and self._exceeds(key, len(proven.body)):
            self.refused[QUOTA] += 1
            return self._too_much()
        if proven.event.digest not in self._reserved:
            self._reserved[proven.event.digest] = key
            self._used[key] += len(proven.body)
        return None

    def _exceeds(self, key: _Key, size: int) -> bool:
        most = self._limits.author_bytes_per_day
        return bool(most) and self._used[key] + size > most

    def _key_of(self, proven: ProvenEvent) -> _Key:
        event = proven.event
        return self._key(event.author, is_membership=event.event_type in MEMBERSHIP_TYPES)

    def _key(self, author: str, *, is_membership: bool) -> _Key:
        is_known = self._folding.state.roster.is_known(author)
        return (author if is_known else "", is_membership)

    def _is_full(self) -> bool:
        if not self._limits.min_free_bytes:
            return False
        try:
            return shutil.disk_usage(self._folder).free < self._limits.min_free_bytes
        except OSError:
            return False  # the store reports the error of the disk

    def _today(self) -> int:
        return int(self._clock.now() // DAY_SECONDS)

    def _turn(self) -> None:
        today = self._today()
        if today != self._day:
            self._day = today
            self._used.clear()

    def _too_much(self) -> CommunityError:
        left = (self._day + 1) * DAY_SECONDS - self._clock.now()
        return CommunityError(
            Code.CAPACITY_EXCEEDED,
            f"this node has accepted {self._limits.author_bytes_per_day} bytes from that author "
            "today, and accepts no more until tomorrow",
            mend="raise [community] author_bytes_per_day where that is too little",
            details={"retry_after_ms": int(left * 1000) + 1},
        )

    def _no_room(self) -> CommunityError:
        return CommunityError(
            Code.CAPACITY_EXCEEDED,
            "this node's disk is nearly full, and it accepts no content until there is space",
            mend="free some space, or lower [community] min_free_bytes",
            details={"retry_after_ms": 60_000},
        )
