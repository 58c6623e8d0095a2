"""What Accord's tests and its users' tests share.

Protocols are tested on virtual time (`run_virtual`, `VirtualClock`) and over a network whose faults
come from a seed (`SimulatedNetwork`), so that a failure found once can be replayed. Edges are
tested against real servers from wheels (`accord.testing.servers`) and against processes that are
killed without warning (`accord.testing.faults`); these two need the extra `accord[dev]` and are
imported by name. A pytest plugin offers the servers as fixtures. Nothing in here is meant for
production.
"""

from accord.testing.clock import VirtualClock, run_virtual
from accord.testing.conditions import Conditions, Message, Outcome, TraceRecord
from accord.testing.errors import HarnessError
from accord.testing.network import Endpoint, Handler, SimulatedNetwork

__all__ = [
    "Conditions",
    "Endpoint",
    "Handler",
    "HarnessError",
    "Message",
    "Outcome",
    "SimulatedNetwork",
    "TraceRecord",
    "VirtualClock",
    "run_virtual",
]
