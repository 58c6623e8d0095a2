"""The store of the authority: one schema for contracts, deployments, people and devices.

Owns the name of the store and the folder of its revisions.
"""

from pathlib import Path
from typing import Final

from accord.authority.people_tables import people
from accord.storage import Schema

# Through a table of theirs, so that the tables of people belong to it whoever opens it.
AUTHORITY: Final = Schema("authority", people.metadata, Path(__file__).parent / "migrations")
