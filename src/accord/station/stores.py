"""Every store that a station may keep. To know them all is to load every plane."""

from typing import Final

# Both halves of the connector declare their tables in RELAY.
import accord.relay.connector.control.tables
import accord.relay.connector.delivery.tables  # noqa: F401
from accord.authority.schema import AUTHORITY
from accord.capabilities.rag.tables import SCHEMA as RAG
from accord.community.bus import BUS_STORE as BUS
from accord.community.log import SCHEMA as COMMUNITY
from accord.relay.connector import RELAY
from accord.relay.platforms.webchat.tables import WEBCHAT
from accord.station.store import STATION

SCHEMAS: Final = (STATION, COMMUNITY, BUS, RAG, RELAY, WEBCHAT, AUTHORITY)
"""What backups and checks go through, as far as it is there."""

OUTBOXES: Final = (COMMUNITY, BUS, RELAY, AUTHORITY)
"""Those whose journals hold streams of the pipeline."""
