"""What a plane declares about its store. Every store has a journal."""

import re
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import MetaData

from accord.storage import journal
from accord.storage.errors import StoreError

_NAME = re.compile(r"[a-z][a-z0-9_]{0,30}", re.ASCII)


@dataclass(frozen=True, eq=False)
class Schema:
    """The tables of one plane.

    Args:
        name: The name of the SQLite file and of the PostgreSQL schema.
        metadata: The tables; the journal is added to them.
        migrations: The folder of Alembic revisions, without those of the journal.
    """

    name: str
    metadata: MetaData
    migrations: Path | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name.startswith("pg_"):
            raise StoreError(
                f"{self.name!r} cannot name a store", mend="use a few lower-case letters"
            )
        journal.declare(self.metadata)
