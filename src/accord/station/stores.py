"""Every store of a station. Importing this module imports every plane's tables."""

from typing import Final

# Both parts of the connector have their tables in RELAY.
from accord.authority.tables import AUTHORITY
from accord.capabilities.rag.tables import SCHEMA as RAG
from accord.community.bus import BUS_STORE as BUS
from accord.community.store import COMMUNITY_STORE as COMMUNITY
from accord.relay.connector import RELAY
from accord.relay.platforms.webchat.tables import WEBCHAT
from accord.station.store import STATION

SCHEMAS: Final = (STATION, COMMUNITY, BUS, RAG, RELAY, WEBCHAT, AUTHORITY)
"""The stores that backups and checks cover, if they exist."""

OUTBOXES: Final = (COMMUNITY, BUS, RELAY, AUTHORITY)
"""The stores whose journals the pipeline exports."""
