"""One small layer over SQLite (embedded) and PostgreSQL (outgrown).

Each plane has a store of its own: its tables, its migrations and a journal of what happened.
Writes of many callers share a commit, and a write that was awaited is on disk. Records that are
signed or acknowledged live in sealed tables, which `check` can prove intact.
"""

from accord.storage.backup import backup, restore
from accord.storage.bulk import Rows
from accord.storage.check import Report, check, exists
from accord.storage.errors import StoreError, StoreHeldError
from accord.storage.figures import Figures, figures
from accord.storage.journal import Entry, Record
from accord.storage.rollback import Step, newer, pending, roll_back
from accord.storage.schema import Schema
from accord.storage.sealing import sealed, verify
from accord.storage.store import Store, open_store

__all__ = [
    "Entry",
    "Figures",
    "Record",
    "Report",
    "Rows",
    "Schema",
    "Step",
    "Store",
    "StoreError",
    "StoreHeldError",
    "backup",
    "check",
    "exists",
    "figures",
    "newer",
    "open_store",
    "pending",
    "restore",
    "roll_back",
    "sealed",
    "verify",
]
