"""The store of the relay: one schema, declared by both halves of the connector.

Owns the name of the store and the folder of its revisions. The tables are declared next to the code
that uses them, in `control/tables.py` and `delivery/tables.py`.
"""

from pathlib import Path
from typing import Final

from sqlalchemy import MetaData

from accord.storage import Schema

METADATA: Final = MetaData()
RELAY: Final = Schema("relay", METADATA, Path(__file__).parent / "migrations")
