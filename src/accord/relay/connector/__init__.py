"""The connector: holds every platform's secrets, decides who receives what, and delivers it.

The control half (`manage`, `directory`) keeps gateways, links, grants, policies and the vault.
The delivery half (`delivery`) moves events and actions, and asks control by the `Directory`. Both
share one store, `RELAY`.
"""

from accord.relay.connector.authentication import (
    ManagedTokens,
    PublicKey,
    close_reason,
    load_managed_keys,
)
from accord.relay.connector.bus import (
    BusHint,
    Listener,
    LocalBus,
    RedisBus,
    RelayBus,
    Topic,
    read_hint,
    write_hint,
)
from accord.relay.connector.connections import ConnectionHub
from accord.relay.connector.connector import (
    Connector,
    Delivery,
    assembled,
    collect_metrics,
    open_connector,
)
from accord.relay.connector.context import DeliveryContext
from accord.relay.connector.dead_letters import DeadLetter, drop_letters, letter_numbers
from accord.relay.connector.directory import Directory
from accord.relay.connector.gate_facts import BotPermissions, VisibilityCache
from accord.relay.connector.http import ControlRoutes
from accord.relay.connector.ingest import Explanation, explain_event, latest_events
from accord.relay.connector.limits import RateLimiter
from accord.relay.connector.links import LinkCode, LinkReply
from accord.relay.connector.manage import Control
from accord.relay.connector.outbox import OutboundRequest, action_digest, begin_request
from accord.relay.connector.platform import (
    Fence,
    FoundCapability,
    InboundEvent,
    InboundKind,
    Platform,
    PlatformContext,
    PlatformState,
    PlatformStatus,
    PlatformWithCommands,
    PlatformWithNames,
)
from accord.relay.connector.queue import (
    INBOUND,
    PASSTHROUGH,
    Batch,
    BatchResult,
    BufferRow,
    QueueState,
    QueueWriter,
    ranges,
    read_buffer_id,
)
from accord.relay.connector.registry import (
    EnrolmentToken,
    InstanceRecord,
    IssuedCredentials,
    ManagedClaims,
    MintedToken,
    ProvisionRequest,
    RotatedSecret,
    list_tokens,
)
from accord.relay.connector.retention import Housekeeping, QueueBacklog, QueueRetention
from accord.relay.connector.settings import ControlSettings, DeliveryLimits
from accord.relay.connector.socket import SocketSession, SocketState
from accord.relay.connector.store import METADATA, RELAY, Principal
from accord.relay.connector.vault import Box, Capability, Keyring, Vault
from accord.relay.connector.wake import Waker

__all__ = [
    "INBOUND",
    "METADATA",
    "PASSTHROUGH",
    "RELAY",
    "Batch",
    "BatchResult",
    "BotPermissions",
    "Box",
    "BufferRow",
    "BusHint",
    "Capability",
    "ConnectionHub",
    "Connector",
    "Control",
    "ControlRoutes",
    "ControlSettings",
    "DeadLetter",
    "Delivery",
    "DeliveryContext",
    "DeliveryLimits",
    "Directory",
    "EnrolmentToken",
    "Explanation",
    "Fence",
    "FoundCapability",
    "Housekeeping",
    "InboundEvent",
    "InboundKind",
    "InstanceRecord",
    "IssuedCredentials",
    "Keyring",
    "LinkCode",
    "LinkReply",
    "Listener",
    "LocalBus",
    "ManagedClaims",
    "ManagedTokens",
    "MintedToken",
    "OutboundRequest",
    "Platform",
    "PlatformContext",
    "PlatformState",
    "PlatformStatus",
    "PlatformWithCommands",
    "PlatformWithNames",
    "Principal",
    "ProvisionRequest",
    "PublicKey",
    "QueueBacklog",
    "QueueRetention",
    "QueueState",
    "QueueWriter",
    "RateLimiter",
    "RedisBus",
    "RelayBus",
    "RotatedSecret",
    "SocketSession",
    "SocketState",
    "Topic",
    "Vault",
    "VisibilityCache",
    "Waker",
    "action_digest",
    "assembled",
    "begin_request",
    "close_reason",
    "collect_metrics",
    "drop_letters",
    "explain_event",
    "latest_events",
    "letter_numbers",
    "list_tokens",
    "load_managed_keys",
    "open_connector",
    "ranges",
    "read_buffer_id",
    "read_hint",
    "write_hint",
]
