"""One process at a time, for work on a store that others than its writers do.

Owns a lock for each store and purpose: a locked file beside a SQLite file, an advisory lock of a
PostgreSQL server. Either is let go when its holder ends, however it ends. Keeps nobody from
reading or writing.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sqlalchemy.exc import DBAPIError

from accord.storage.errors import StoreHeldError
from accord.storage.place import Place, Role, connect

_TRY = "SELECT pg_try_advisory_lock(hashtext(%(key)s))"
_LET_GO = "SELECT pg_advisory_unlock(hashtext(%(key)s))"


@contextmanager
def exclusive(place: Place, purpose: str) -> Iterator[None]:
    """Hold a store for a purpose.

    Args:
        place: Where the store is.
        purpose: A word, such as `export`.

    Raises:
        StoreHeldError: Another process holds it.
    """
    if place.file is not None:
        with _file_lock(place.file.with_name(f"{place.file.name}.{purpose}.lock"), place, purpose):
            yield
        return
    engine = connect(place, Role.READ)
    with engine.connect() as connection:
        # Outside of a transaction, which would keep the server from tidying for as long.
        holding = connection.execution_options(isolation_level="AUTOCOMMIT")
        key = {"key": f"accord.{place.name}.{purpose}"}
        if not holding.exec_driver_sql(_TRY, key).scalar_one():
            raise _held(place, purpose, "another process")
        try:
            yield
        finally:
            # A server takes a moment to notice that a connection has gone; the next need not wait.
            with suppress(DBAPIError):
                holding.exec_driver_sql(_LET_GO, key)


@contextmanager
def _file_lock(file: Path, place: Place, purpose: str) -> Iterator[None]:
    descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = os.read(descriptor, 20).decode(errors="replace")
            who = f"process {pid}" if pid.isascii() and pid.isdecimal() else "another process"
            raise _held(place, purpose, who) from None
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        os.close(descriptor)


def _held(place: Place, purpose: str, who: str) -> StoreHeldError:
    return StoreHeldError(
        f"{who} holds the store for its {purpose}", where=place.label, mend="wait until it is done"
    )
