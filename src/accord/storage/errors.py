"""The storage layer's one error, and how a database's complaint becomes a sentence.

Owns the line between a fault of the database (disk full, server gone, damaged file), which is
told as a `StoreError`, and a mistake of the work (constraint, syntax), which passes unchanged.
Never shows a password: places are named by their label.
"""

import sqlite3

import psycopg
from sqlalchemy import exc

from accord.kernel.errors import AccordError

_RESTORE = "run `accord store check` and restore the last good backup"
_SPACE = "free some space and try again; everything acknowledged so far is safe"

# By primary result code of SQLite.
_SQLITE = {
    sqlite3.SQLITE_FULL: ("the disk is full", _SPACE),
    sqlite3.SQLITE_BUSY: (
        "another process has been writing to the store for too long",
        "find and end that process, or try again",
    ),
    sqlite3.SQLITE_NOTADB: ("this file is not a database", "move it away, or restore a backup"),
    sqlite3.SQLITE_CORRUPT: ("the store is damaged", _RESTORE),
    sqlite3.SQLITE_READONLY: ("the store cannot be written", "check the owner, mode and mount"),
    sqlite3.SQLITE_PERM: ("the store cannot be opened", "check the owner and mode"),
    sqlite3.SQLITE_CANTOPEN: ("the store cannot be opened", "check the path, owner and mode"),
    sqlite3.SQLITE_IOERR: ("the disk failed to read or write", "check the disk, then try again"),
}
# By SQLSTATE, or its class, of PostgreSQL.
_POSTGRES = {
    "28": ("the server refuses this login", "check user and password in the store's URL"),
    "3D000": ("the server has no such database", "create it, or name another in the store's URL"),
    "42501": ("the user may not do this", "grant it the right to create and use its schema"),
    "53100": ("the server's disk is full", _SPACE),
    "53300": ("the server takes no more connections", "raise max_connections, or try again"),
    "55P03": ("another process holds the store", "find and end that process, or try again"),
}
_WORK_MISTAKES = (exc.IntegrityError, exc.DataError, exc.ProgrammingError, exc.NotSupportedError)


class StoreError(AccordError):
    """A store cannot do what was asked of it."""


class StoreHeldError(StoreError):
    """Another process holds a store for the same purpose."""


def is_lost(error: BaseException) -> bool:
    """Whether the connection to the server broke under this statement."""
    return isinstance(error, exc.DBAPIError) and error.connection_invalidated


def is_denied(error: exc.DBAPIError) -> bool:
    """Whether a file could not be looked at, which says nothing about its soundness."""
    return _sqlite_code(error.orig) in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    )


def explain(error: BaseException, where: str) -> BaseException:
    """Turn a fault of the database or the filesystem into a `StoreError`; pass on all else."""
    if isinstance(error, exc.StatementError) and isinstance(error.orig, StoreError):
        return error.orig  # raised while the statement's values were prepared
    told: tuple[str, str] | None = None
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        told = f"the store cannot be opened ({reason})", "choose a folder that can be written"
    elif isinstance(error, sqlite3.Error):
        told = _tell_sqlite(error)
    elif isinstance(error, exc.DBAPIError):
        if isinstance(error.orig, sqlite3.Error):
            told = _tell_sqlite(error.orig)
        elif isinstance(error.orig, psycopg.Error):
            told = _tell_postgres(error, error.orig)
    if told is None:
        return error
    explained = StoreError(told[0], where=where, mend=told[1])
    explained.__cause__ = error
    return explained


def _sqlite_code(cause: BaseException | None) -> int:
    # Errors that the sqlite3 module raises itself carry no code.
    code: int = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF


def _tell_sqlite(cause: sqlite3.Error) -> tuple[str, str] | None:
    code = _sqlite_code(cause)
    if code in _SQLITE:
        what, mend = _SQLITE[code]
        return f"{what} ({cause})", mend
    return ("the store is damaged (broken text)", _RESTORE) if "UTF-8" in str(cause) else None


def _tell_postgres(error: exc.DBAPIError, cause: psycopg.Error) -> tuple[str, str] | None:
    text = str(cause).strip().partition("\n")[0]
    state = cause.sqlstate or ""
    for key in (state, state[:2]):
        if key in _POSTGRES:
            what, mend = _POSTGRES[key]
            return f"{what} ({text})", mend
    if error.connection_invalidated or (not state and isinstance(error, exc.OperationalError)):
        mend = "check that it runs and that the store's URL names it"
        return f"the PostgreSQL server does not answer ({text})", mend
    if text.startswith("invalid connection option"):
        return f"the store's URL cannot be used ({text})", "remove that option from it"
    if isinstance(error, _WORK_MISTAKES):
        return None
    return f"the PostgreSQL server failed ({text})", "see the server's log"
