"""The session in which a command on the shell calls, listens and administers.

Owns the shell's key, the contract under which it acts, the address of the authority, and the words
for what is missing. A command acts under a contract that uses the one that it names, and nothing
else.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from accord.cli.contract_reading import printable, read_contract

if TYPE_CHECKING:
    from accord.fabric import BootstrapError, Session
    from accord.kernel.signing import SigningKey
    from accord.station.settings import Settings

T = TypeVar("T")

SHELL: Final = "shell"
"""The deployment that the shell's key is an instance of."""

ContractFile = Annotated[
    str, typer.Argument(metavar="CONTRACT", help="The manifest of what is called; - is stdin.")
]
AuthorityUrl = Annotated[
    str | None,
    typer.Option("--authority", help="Its address (default: the one that runs in the home)."),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(help="The session's key (default: the one that `accord rpc allow` let in)."),
]
As = Annotated[
    str | None,
    typer.Option("--as", help="The contract that the key was let in with, a JSON file."),
]
Wait = Annotated[
    float, typer.Option(min=0, max=3600, help="How many seconds to wait until it is let in.")
]
PATIENCE: Final = 10.0


@dataclass(frozen=True, slots=True)
class Shell:
    """As whom, where and for how long a command tries to be let in."""

    home: Path | None = None
    config: Path | None = None
    authority: str | None = None
    key_file: Path | None = None
    acting_as: str | None = None
    wait: float = PATIENCE

    def run(
        self,
        target: Mapping[str, Any],
        work: Callable[["Session"], Awaitable[T]],
    ) -> T:
        """Do something in a session that may use a contract.

        Raises:
            AccordError: It is not let in, or the work fails.
        """
        from accord.fabric import Authority, BootstrapError, Service
        from accord.fabric.shell import shell_contract
        from accord.station import logs
        from accord.station.settings import load

        settings = load(self.home, self.config)
        key = self._key(settings)
        chosen = Authority(address(settings, self.authority), self.wait)
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


def stopping() -> asyncio.Event:
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


async def first(*ends: Coroutine[Any, Any, Any]) -> None:
    """Wait for the first of several to end, and end the others; what it raises is raised."""
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


def kept_key(file: Path) -> "SigningKey":
    """The key of a file, which is made, for its owner only, where it is not there.

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


def address(settings: "Settings", chosen: str | None) -> str:
    """Where the authority is: as chosen, where the home's station runs, or as the settings say."""
    from accord.station.home import Home, holder

    if chosen is not None:
        return chosen
    if settings.authority.url:
        return settings.authority.url
    held = holder(Home(settings.home))
    if held is not None and held.is_station:
        return held.address
    host, port = settings.station.host, settings.station.port
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
