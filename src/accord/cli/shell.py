"""The session in which commands call services: the shell's key, its contract, the authority.

A command acts under a contract that uses the one that it names, and nothing else.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from accord.cli import output
from accord.cli.arguments import printable, read_contract
from accord.cli.output import Cli, Output

if TYPE_CHECKING:
    from accord.fabric import BootstrapError, FabricError, Session
    from accord.kernel.signing import SigningKey
    from accord.station.settings import Settings


T = TypeVar("T")

SHELL: Final = "shell"
"""The deployment that the shell's key is an instance of."""

EVERY_CONTRACT: Final = "*"
"""Granted calls of every contract."""

ContractFile = Annotated[
    str, typer.Argument(metavar="CONTRACT", help="The manifest of what is called; - is stdin.")
]
AuthorityUrl = Annotated[
    str | None,
    typer.Option("--authority", help="Its address (default: the one that runs in the home)."),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(help="The session's key (default: the one that `accord rpc allow` enrolled)."),
]
As = Annotated[
    str | None,
    typer.Option("--as", help="The contract that the key was enrolled with, a JSON file."),
]
Wait = Annotated[
    float, typer.Option(min=0, max=3600, help="How many seconds to wait until it is admitted.")
]
PATIENCE: Final = 10.0


@dataclass(frozen=True)
class ShellCli(Cli):
    """The context of a command that calls services."""

    authority: AuthorityUrl = None
    key_file: KeyFile = None
    acting_as: As = None
    wait: Wait = PATIENCE

    def run(self, target: Mapping[str, Any], work: Callable[["Session"], Awaitable[T]]) -> T:
        """Do something in a session that may use a contract; raises `AccordError`."""
        from accord.fabric import Authority, BootstrapError, Service
        from accord.fabric.app import shell_contract
        from accord.station import logs

        settings = self.settings()
        key = self._key(settings)
        chosen = Authority(authority_address(settings, self.authority), self.wait)
        own = None if self.acting_as is None else read_contract(self.acting_as)
        contract = own or shell_contract(target)

        async def connected() -> T:
            # A service without handlers: it calls like an app, and says that it is there.
            async with Service(contract, key=key, authority=chosen).connect() as session:
                return await work(session)

        with logs.configured(settings.log.model_copy(update={"level": "critical"})):
            try:
                return asyncio.run(connected())
            except BootstrapError as error:
                raise self._refusal(error, key) from error

    def _key(self, settings: "Settings") -> "SigningKey":
        from accord.kernel.signing import SigningKey
        from accord.station.errors import StationError

        if self.key_file is not None:
            return SigningKey.load(self.key_file)
        file = shell_key(settings)
        if not file.exists():
            raise StationError(
                "the shell of this home has no key yet",
                where=str(file),
                mend="run `accord rpc allow` once, or name a key with --key-file",
            )
        return SigningKey.load(file)

    def _refusal(self, error: "BootstrapError", key: "SigningKey") -> "BootstrapError":
        from accord.contracts.session_proof import session_key
        from accord.fabric import BootstrapError

        mend = error.mend
        if error.code == "unknown_session":
            mend = (
                "run `accord rpc allow` once"
                if self.key_file is None
                else "where the authority runs, add it to a deployment with "
                f"`accord authority instance add {SHELL} {session_key(key)}`"
            )
        return BootstrapError(
            error.code,
            printable(error.what),
            where=error.where,
            mend=None if mend is None else printable(mend),
            body=error.body,
        )


def stop_event() -> asyncio.Event:
    """Set when SIGTERM or SIGINT comes; a second one ends the process at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    both = (signal.SIGTERM, signal.SIGINT)

    def stopped() -> None:
        stop.set()
        for number in both:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in both:
        loop.add_signal_handler(number, stopped)
    return stop


async def wait_first(*ends: Coroutine[Any, Any, Any]) -> None:
    """Wait for the first coroutine to end, and cancel the others; its exception is raised."""
    tasks = [asyncio.create_task(each) for each in ends]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()


def shell_key(settings: "Settings") -> Path:
    """Where the shell's key lies."""
    return settings.home / "keys" / "shell.ed25519"


def load_or_create_key(file: Path) -> "SigningKey":
    """Load the key of a file; create it, readable by its owner only, if it is missing.

    Raises:
        AccordError: It cannot be made or read.
    """
    from accord.kernel.signing import SigningError, SigningKey

    if not file.exists():
        try:
            for folder in (file.parent.parent, file.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SigningError(
                f"the folder of the key cannot be made ({error.strerror})",
                where=str(file.parent),
                mend="name another with --home, or a file with --key-file",
            ) from None
        try:
            return SigningKey.create(file)
        except SigningError:
            if not file.exists():  # another process was not quicker: it cannot be made
                raise
    return SigningKey.load(file)


def authority_address(settings: "Settings", chosen: str | None) -> str:
    """Where the authority is: as chosen, where the home's station runs, or as the settings say."""
    from accord.station.home import Home, home_holder

    if chosen is not None:
        return chosen
    if settings.authority.url:
        return settings.authority.url
    held = home_holder(Home(settings.home))
    if held is not None and held.is_station:
        return held.address
    host, port = settings.station.host, settings.station.port
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


@contextmanager
def fabric_errors(cli: Output) -> Iterator[None]:
    """Print an error of the fabric with its type, and exit with code 1."""
    from accord.fabric import FabricError

    try:
        yield
    except FabricError as error:
        cli.emit({"error": output.error_members(error)})
        for line in _error_lines(error):
            cli.note(f"error: {printable(line)}")
        raise typer.Exit(output.FAILED) from error


def _error_lines(error: "FabricError") -> list[str]:
    from accord.fabric import ValidationError

    issues = error.issues if isinstance(error, ValidationError) else ()
    return [
        f"{error.type}: {error}",
        *(f"  {each['path'] or '(whole document)'}: {each['message']}" for each in issues),
    ]


def require_surface(target: dict[str, Any], section: str, name: str) -> None:
    """Check that a contract has a surface; raises `NotFoundError`."""
    from accord.fabric.rules.terms import missing_surface

    known = target.get(section, {})
    if name not in known:
        raise missing_surface(target["id"], section, name, known)
