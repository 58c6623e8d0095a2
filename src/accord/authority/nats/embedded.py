"""A NATS server of our own: a child process that is configured, watched and started again.

Owns one folder (keys, configuration, streams, log) and the process. Without TLS it listens on
loopback only. It never serves anybody itself, and leaves no process behind: one that an earlier
authority could not end is ended before a new one starts.
"""

import asyncio
import contextlib
import fcntl
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

import structlog

from accord.authority.errors import AuthorityError, Code
from accord.authority.nats.cluster import Cluster
from accord.authority.nats.configuration import Listening, configuration, server_name
from accord.authority.nats.process import end_orphan, program
from accord.authority.nats.trust import Trust
from accord.kernel.clock import Clock

_log = structlog.stdlib.get_logger(__name__)

_START_SECONDS: Final = 30.0
_STOP_SECONDS: Final = 20.0
_POLL_SECONDS: Final = 0.05
_FIRST_PAUSE: Final = 0.25
_LONGEST_PAUSE: Final = 15.0
_HEALTHY_SECONDS: Final = 30.0
_SAID: Final = 2000


class Embedded:
    """A running server; its process may change, all else stays.

    Attributes:
        cluster: What the authority must hold to rule it.
        restarts: How often it had to be started again.
    """

    def __init__(
        self, folder: Path, listening: Listening, name: str, cluster: Cluster, clock: Clock
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
        """The id of the process, if one runs."""
        process = self._process
        return process.pid if process and process.returncode is None else None

    async def start(self) -> None:
        """Start the process and wait until it answers.

        Raises:
            AuthorityError: It ended instead, or did not answer in time; with what it said.
        """
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
            if await _answers(self._listening, self._name):
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
                program(),
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
        """Start it again whenever it ends, with growing pauses; runs until it is cancelled."""
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
    folder: Path, listening: Listening, clock: Clock
) -> AsyncIterator[Embedded]:
    """Run a server on the data of a folder until the block ends.

    Args:
        folder: Its home; made where it is missing.
        listening: Where sessions reach it; a port of 0 takes a free one.
        clock: Where the time comes from.

    Raises:
        AuthorityError: The folder is in use, the server does not start, or it would be open to
            others without TLS.
    """
    listening = listening.checked()
    with _held(folder):
        trust = Trust.kept(folder / "keys")
        await end_orphan(folder / "server.pid", folder / "server.conf")
        if listening.port == 0:
            listening = listening.on(_kept_port(folder / "port", listening.host))
        now = clock.now()
        _write(folder / "server.conf", configuration(folder, listening, trust, now))
        cluster = _cluster(listening, trust, now)
        server = Embedded(folder, listening, server_name(trust), cluster, clock)
        await server.start()
        keeping = asyncio.create_task(server.keep(), name="keep the NATS server")
        try:
            yield server
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping
            await server.stop()


def _kept_port(file: Path, host: str) -> int:
    """The port of last time, so that sessions find the server again; another if it is taken."""
    try:
        port = int(file.read_text())
        with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            tried.bind((host, port))
    except (OSError, ValueError, OverflowError):
        port = _free_port(host)
        file.write_text(str(port))
    return port


def _cluster(listening: Listening, trust: Trust, now: float) -> Cluster:
    return Cluster(
        urls=(listening.url,),
        account=trust.account.public,
        account_key=trust.account,
        callout_account=trust.callout.public,
        callout_key=trust.callout,
        callout=trust.listening(now),
        authority=trust.authority(now),
        sentinel=trust.sentinel(now),
        xkey=trust.xkey,
        system=trust.watching(now),
        local=(listening.local_url,),
        tls=_pinned(listening.certificate) if listening.certificate else None,
    )


def _pinned(certificate: Path) -> ssl.SSLContext:
    """Trust just our own certificate, whatever name it is for: we dial loopback."""
    context = ssl.create_default_context(cafile=certificate)
    context.check_hostname = False
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context


async def _answers(listening: Listening, name: str) -> bool:
    """Whether a server of that name greets; another one may hold the port."""
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
    """Replace a file that only its owner may read."""
    draft = file.with_name(f".{file.name}.new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(text)
    draft.replace(file)


def _tail(file: Path) -> str:
    return file.read_bytes()[-_SAID:].decode(errors="replace").strip()


@contextmanager
def _held(folder: Path) -> Iterator[None]:
    """One authority at a time; the lock goes with its holder, however that ends."""
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
