"""What every deployment shares on JetStream: the streams of events and jobs, and kept state.

Pure; the reconciler makes it before anything else. Acknowledged means synced: that is the server's
setting (`sync_interval: always`), not the stream's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from accord.authority.reconcile.resources import PLATFORM, Resource, bucket, stream

EVENTS: Final = "trellis"
JOBS: Final = "JOBS"
JOBS_WORK: Final = "JOBS_WORK"
JOBS_ADVISORIES: Final = "JOBS_ADVISORIES"
STATE_BUCKET: Final = "acc_state"

PASSING: Final[Mapping[str, int]] = {"events.v1.Health.Heartbeat": 10_000}
"""Events that mean little once they are old, by subject: how many are kept at least."""

_DAY_MS: Final = 24 * 60 * 60 * 1000
_ADVISORY: Final = "$JS.EVENT.ADVISORY.CONSUMER"


@dataclass(frozen=True, slots=True)
class Keeping:
    """How long things are kept, and how often.

    Attributes:
        events_ms: How long events can be replayed; 0 for ever.
        jobs_ms: How long the history of jobs is kept; 0 for ever.
        replicas: Copies of every stream, in a cluster.
    """

    events_ms: int = 0
    jobs_ms: int = 90 * _DAY_MS
    replicas: int = 1


def platform(keeping: Keeping) -> tuple[Resource, ...]:
    """The shared streams, section 7 of the notes on the fabric."""
    copies = keeping.replicas
    return (
        stream(
            EVENTS,
            PLATFORM,
            ["events.>"],
            max_age_ms=keeping.events_ms,
            replicas=copies,
            allow_direct=True,
        ),
        stream(
            JOBS,
            PLATFORM,
            ["trellis.jobs.>"],
            max_age_ms=keeping.jobs_ms,
            replicas=copies,
            allow_direct=True,
        ),
        stream(JOBS_WORK, PLATFORM, ["trellis.work.>"], replicas=copies, retention="workqueue"),
        stream(
            JOBS_ADVISORIES,
            PLATFORM,
            [
                f"{_ADVISORY}.MAX_DELIVERIES.{JOBS_WORK}.>",
                f"{_ADVISORY}.MSG_TERMINATED.{JOBS_WORK}.>",
            ],
            max_age_ms=7 * _DAY_MS,
            replicas=copies,
        ),
        bucket(STATE_BUCKET, PLATFORM, replicas=copies),
    )
