"""Storage on SQLite (embedded) and PostgreSQL.

Each plane has a store of its own: its tables, its migrations and a journal. Concurrent writes share
a commit, and an awaited write is on disk. Records that are signed or acknowledged live in sealed
tables, which `check` verifies.
"""

from accord.storage.backup import backup, restore
from accord.storage.check import CheckReport, check, exists
from accord.storage.errors import StoreDamagedError, StoreError, StoreHeldError
from accord.storage.journal import (
    BulkInsert,
    JournalEntry,
    JournalRecord,
    is_one_of,
    postgres_array,
    sealed,
    verify,
)
from accord.storage.revisions import (
    RevisionStep,
    newer_revisions,
    open_store,
    pending_revisions,
    roll_back,
)
from accord.storage.store import Schema, Store, StoreMetrics, store_metrics

__all__ = [
    "BulkInsert",
    "CheckReport",
    "JournalEntry",
    "JournalRecord",
    "RevisionStep",
    "Schema",
    "Store",
    "StoreDamagedError",
    "StoreError",
    "StoreHeldError",
    "StoreMetrics",
    "backup",
    "check",
    "exists",
    "is_one_of",
    "newer_revisions",
    "open_store",
    "pending_revisions",
    "postgres_array",
    "restore",
    "roll_back",
    "sealed",
    "store_metrics",
    "verify",
]
