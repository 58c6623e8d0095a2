"""The agent's side of the relay.

A `RelayGateway` dials a connector, so it needs no inbound port, and hands every message to an
agent: an async function that gets a `Turn` and yields text. It knows no platform and no secret
but its own.
"""

from accord.relay.gateway.agent import (
    Agent,
    Reply,
    Turn,
    command_agent,
    load_agent,
    prepare_agent,
    run_agent,
)
from accord.relay.gateway.enrolment import (
    GatewayCredentials,
    StoredSecret,
    credentials_file,
    credentials_files,
    enrol,
    is_private,
    load_credentials,
    rotate,
    settle,
    store_secret,
)
from accord.relay.gateway.gateway import (
    GatewayHealth,
    GatewayState,
    Lifecycle,
    RelayGateway,
    relevance_policies,
)
from accord.relay.gateway.inbox import (
    INBOX_SCHEMA,
    Inbox,
    MemoryInbox,
    OpenInbox,
    ReceivedEvent,
    StoredInbox,
    open_memory_inbox,
    open_stored_inbox,
)
from accord.relay.gateway.limits import GatewayLimits
from accord.relay.gateway.outbox import RecentChats, Requests
from accord.relay.gateway.sessions import Sessions, TurnEnd
from accord.relay.gateway.settings import (
    GatewaySettings,
    IdlePolicy,
    known_to_connector,
    obstacle,
)
from accord.relay.gateway.socket import Dial, Socket, SocketClosed, websocket_dialer
from accord.relay.rules.connection import (
    ConnectionEnd,
    Redial,
    is_nearby,
)
from accord.relay.rules.egress import Pace, is_rate_limited
from accord.relay.rules.splitting import LONG_SEGMENT, SHORT_SEGMENT, complete_length

__all__ = [
    "INBOX_SCHEMA",
    "LONG_SEGMENT",
    "SHORT_SEGMENT",
    "Agent",
    "ConnectionEnd",
    "Dial",
    "GatewayCredentials",
    "GatewayHealth",
    "GatewayLimits",
    "GatewaySettings",
    "GatewayState",
    "IdlePolicy",
    "Inbox",
    "Lifecycle",
    "MemoryInbox",
    "OpenInbox",
    "Pace",
    "ReceivedEvent",
    "RecentChats",
    "Redial",
    "RelayGateway",
    "Reply",
    "Requests",
    "Sessions",
    "Socket",
    "SocketClosed",
    "StoredInbox",
    "StoredSecret",
    "Turn",
    "TurnEnd",
    "command_agent",
    "complete_length",
    "credentials_file",
    "credentials_files",
    "enrol",
    "is_nearby",
    "is_private",
    "is_rate_limited",
    "known_to_connector",
    "load_agent",
    "load_credentials",
    "obstacle",
    "open_memory_inbox",
    "open_stored_inbox",
    "prepare_agent",
    "relevance_policies",
    "rotate",
    "run_agent",
    "settle",
    "store_secret",
    "websocket_dialer",
]
