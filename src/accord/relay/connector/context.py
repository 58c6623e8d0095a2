"""What the parts of delivery in one connector process share."""

from collections import Counter
from dataclasses import dataclass, field

from accord.kernel.clock import Clock
from accord.kernel.identifiers import UlidSource
from accord.relay.connector.directory import Directory
from accord.relay.connector.platform import Platform
from accord.relay.connector.settings import DeliveryLimits
from accord.relay.connector.store import Storage
from accord.relay.rules.messages import GENERIC_PLATFORM
from accord.telemetry.metrics import Durations


@dataclass(frozen=True, slots=True)
class DeliveryContext:
    """Store, directory, platforms, limits and counters of one process."""

    store: Storage
    directory: Directory
    clock: Clock
    ids: UlidSource
    # The name of this process in leases and in the journal; no two that run share one.
    name: str
    limits: DeliveryLimits = field(default_factory=DeliveryLimits)
    # Platforms on which agents may mention everybody.
    mass_mentions: frozenset[str] = frozenset()
    # By name and bot id; it may grow while the process runs.
    platforms: dict[tuple[str, str], Platform] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    # From a platform's call to the commit.
    ingest_seconds: Durations = field(default_factory=Durations)
    # From the commit of a row to its acknowledgement.
    delivery_seconds: Durations = field(default_factory=Durations)

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return int(self.clock.now() * 1000)

    def find_platform(self, name: str, bot_id: str) -> Platform | None:
        """The platform that a gateway means by a name and a bot id, which may be left open."""
        if found := self.platforms.get((name, bot_id)):
            return found
        # A gateway that fronts one bot need not know its id, nor even the platform's name.
        others = [each for each in self.platforms.values() if name in (each.name, GENERIC_PLATFORM)]
        return others[0] if len(others) == 1 else None

    def fronted(self, name: str, bot_id: str) -> list[Platform]:
        """The platforms that a hello means: every one for the generic platform without a bot."""
        if name == GENERIC_PLATFORM and not bot_id:
            return list(self.platforms.values())
        found = self.find_platform(name, bot_id)
        return [] if found is None else [found]
