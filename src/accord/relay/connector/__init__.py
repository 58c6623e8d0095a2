"""The connector: holds every platform's secrets, decides who receives what, and delivers it.

The control half (`manage`, `directory`) keeps gateways, links, grants, policies and the vault.
The delivery half (`connector`) moves events and actions, and asks control by the `Directory`. Both
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
from accord.relay.connector.connector import Connector, Delivery, collect_metrics, open_connector
from accord.relay.connector.directory import DeliveryContext, Directory
from accord.relay.connector.gate_facts import BotPermissions, Revocations, VisibilityCache
from accord.relay.connector.http import ControlRoutes
from accord.relay.connector.ingest import explain_event, latest_events
from accord.relay.connector.links import LinkReply
from accord.relay.connector.manage import Control
from accord.relay.connector.platform import (
    Fence,
    Platform,
    PlatformContext,
    PlatformState,
    PlatformWithCommands,
    PlatformWithNames,
    PlatformWithShards,
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
    InstanceRecord,
    IssuedCredentials,
    ManagedClaims,
    ProvisionRequest,
)
from accord.relay.connector.retention import Housekeeping, QueueBacklog, apply_retention
from accord.relay.connector.settings import ControlSettings, DeliveryLimits
from accord.relay.connector.socket import SocketSession, SocketState
from accord.relay.connector.store import Principal
from accord.relay.connector.tables import METADATA, RELAY
from accord.relay.connector.vault import Box, Capability, Keyring, Pseudonyms, StoreSecret, Vault
from accord.relay.connector.wake import Waker
from accord.relay.rules.messages import FoundCapability, InboundEvent, InboundKind

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
    "Delivery",
    "DeliveryContext",
    "DeliveryLimits",
    "Directory",
    "Fence",
    "FoundCapability",
    "Housekeeping",
    "InboundEvent",
    "InboundKind",
    "InstanceRecord",
    "IssuedCredentials",
    "Keyring",
    "LinkReply",
    "Listener",
    "LocalBus",
    "ManagedClaims",
    "ManagedTokens",
    "Platform",
    "PlatformContext",
    "PlatformState",
    "PlatformWithCommands",
    "PlatformWithNames",
    "PlatformWithShards",
    "Principal",
    "ProvisionRequest",
    "Pseudonyms",
    "PublicKey",
    "QueueBacklog",
    "QueueState",
    "QueueWriter",
    "RedisBus",
    "RelayBus",
    "Revocations",
    "SocketSession",
    "SocketState",
    "StoreSecret",
    "Topic",
    "Vault",
    "VisibilityCache",
    "Waker",
    "apply_retention",
    "close_reason",
    "collect_metrics",
    "explain_event",
    "latest_events",
    "load_managed_keys",
    "open_connector",
    "ranges",
    "read_buffer_id",
    "read_hint",
    "write_hint",
]
