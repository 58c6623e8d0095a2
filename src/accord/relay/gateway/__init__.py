"""The agent's side of the relay.

A `RelayGateway` dials a connector, so it needs no inbound port, and hands every message to an
agent: an async function that gets a `Turn` and yields text. It keeps what it has taken until the
agent is done with it, streams the answer as the platform allows, cancels exactly the turn that was
interrupted, and can sleep when nothing happens. It knows no platform and no platform's secret.
"""

from accord.relay.gateway.agents import Agent, load_agent
from accord.relay.gateway.commands import command_agent
from accord.relay.gateway.gateway import RelayGateway
from accord.relay.gateway.idle import IdlePolicy
from accord.relay.gateway.inbox import Delivery, Inbox, MemoryInbox, Taken
from accord.relay.gateway.limits import Limits
from accord.relay.gateway.settings import GatewaySettings
from accord.relay.gateway.sockets import Closed, Dial, Socket
from accord.relay.gateway.state import Health, State
from accord.relay.gateway.stored import stored
from accord.relay.gateway.turn import Turn

__all__ = [
    "Agent",
    "Closed",
    "Delivery",
    "Dial",
    "GatewaySettings",
    "Health",
    "IdlePolicy",
    "Inbox",
    "Limits",
    "MemoryInbox",
    "RelayGateway",
    "Socket",
    "State",
    "Taken",
    "Turn",
    "command_agent",
    "load_agent",
    "stored",
]
