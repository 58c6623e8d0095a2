"""Tools for tests of what is built on Accord, and for Accord's own.

Virtual time (`run_virtual`, `VirtualClock`) and a network with seeded faults (`SimulatedNetwork`)
make failures reproducible. Real servers (`accord.testing.servers`) and processes that can be killed
(`accord.testing.processes`) need the extra `accord[dev]` and are imported by name.
"""

from accord.testing.clock import HarnessError, VirtualClock, run_virtual
from accord.testing.network import (
    Conditions,
    Endpoint,
    Handler,
    NetworkMessage,
    SimulatedNetwork,
    TraceOutcome,
    TraceRecord,
)

__all__ = [
    "Conditions",
    "Endpoint",
    "Handler",
    "HarnessError",
    "NetworkMessage",
    "SimulatedNetwork",
    "TraceOutcome",
    "TraceRecord",
    "VirtualClock",
    "run_virtual",
]
