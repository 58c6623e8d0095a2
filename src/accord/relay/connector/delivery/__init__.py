"""What moves: from a platform to the agents that may receive it, and back.

An event whose receipt the platform has been told of is on disk, and reaches its instance at least
once, in order per session, until the instance acknowledges it. `ingest` takes events, `ledger`
writes everything that waits as one unit of work, `session` says what a socket owes, `connection`
and `hub` send it, `outbound` does what agents ask for. `Delivery` puts them together.
"""

from accord.relay.connector.delivery.bus import LocalBus, RedisBus, RelayBus
from accord.relay.connector.delivery.limits import Limits
from accord.relay.connector.delivery.service import Delivery

__all__ = ["Delivery", "Limits", "LocalBus", "RedisBus", "RelayBus"]
