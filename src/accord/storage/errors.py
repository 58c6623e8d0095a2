"""Errors of the storage layer, and the translation of database errors into them.

Faults of the database (disk full, server unreachable, damaged file) become a `StoreError`; mistakes
of the caller (constraint, syntax) pass unchanged. Messages name a store by its label, which holds
no password.
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
    sqlite3.SQLITE_NOTADB: ("this file is not a database", _RESTORE),
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


class StoreDamagedError(StoreError):
    """A store exists and cannot be read; it has to be restored."""


class StoreHeldError(StoreError):
    """Another process holds the store for the same purpose."""


def is_lost(error: BaseException) -> bool:
    """Whether the connection to the server broke during this statement."""
    return isinstance(error, exc.DBAPIError) and error.connection_invalidated


def is_conflict(error: BaseException) -> bool:
    """Whether the server ended the transaction in favour of another: a deadlock or the like."""
    cause = error.orig if isinstance(error, exc.DBAPIError) else None
    return isinstance(cause, psycopg.Error) and cause.sqlstate in ("40P01", "40001")


def is_denied(error: exc.DBAPIError) -> bool:
    """Whether a file could not be accessed, which says nothing about its integrity."""
    return _sqlite_code(error.orig) in (
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PERM,
        sqlite3.SQLITE_READONLY,
    )


def explain(error: BaseException, where: str) -> BaseException:
    """Turn a fault of the database or the filesystem into a `StoreError`; return others as is."""
    if isinstance(error, exc.StatementError) and isinstance(error.orig, StoreError):
        return error.orig  # raised while the statement's values were prepared
    message: tuple[str, str] | None = None
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        message = f"the store cannot be opened ({reason})", "choose a folder that can be written"
    elif isinstance(error, sqlite3.Error):
        message = _sqlite_message(error)
    elif isinstance(error, exc.DBAPIError):
        if isinstance(error.orig, sqlite3.Error):
            message = _sqlite_message(error.orig)
        elif isinstance(error.orig, psycopg.Error):
            message = _postgres_message(error, error.orig)
    if message is None:
        return error
    kind = StoreDamagedError if message[1] == _RESTORE else StoreError
    explained = kind(message[0], where=where, mend=message[1])
    explained.__cause__ = error
    return explained


def damaged(where: str, found: str) -> StoreDamagedError:
    """The error for a store in which damage was found."""
    text = found.strip().partition("\n")[0][:200]
    return StoreDamagedError(f"the store is damaged ({text})", where=where, mend=_RESTORE)


def _sqlite_code(cause: BaseException | None) -> int:
    # Errors that the sqlite3 module raises itself carry no code.
    code: int = getattr(cause, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
    return code & 0xFF


def _sqlite_message(cause: sqlite3.Error) -> tuple[str, str] | None:
    code = _sqlite_code(cause)
    if code in _SQLITE:
        what, mend = _SQLITE[code]
        return f"{what} ({cause})", mend
    return ("the store is damaged (broken text)", _RESTORE) if "UTF-8" in str(cause) else None


def _postgres_message(error: exc.DBAPIError, cause: psycopg.Error) -> tuple[str, str] | None:
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
