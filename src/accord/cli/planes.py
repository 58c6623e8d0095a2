"""The relay and the authority of a home, as operators' commands reach them.

The relay is reached by its store, whether or not it runs, or over HTTP where it is on another
machine (`accord relay --connector`); both perform the same verbs. The authority is reached by its
routes where it runs, with a token that only its user can read, else by its store.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import typer

from accord.cli.arguments import STDIN, printable
from accord.cli.output import Cli

if TYPE_CHECKING:
    from pydantic import SecretStr

    from accord.relay.connector.connector import Connector
    from accord.relay.connector.store import Principal
    from accord.station.settings import Settings
    from accord.web.remote import Remote


Deployment = Annotated[str, typer.Argument(help="The deployment's name.")]
OfDeployment = Annotated[
    str | None, typer.Option("--deployment", help="Only those of this deployment.")
]
By = Annotated[str, typer.Option("--by", help="Who decides, for the history.")]

HOME: Final = "home"
"""The name of the home's own registry."""

_SECONDS: Final = 60.0
_MAX_ANSWER: Final = 64 << 20
_ABSENT: Final = 404


def ask_authority(cli: Cli, verb: str, **body: Any) -> dict[str, Any]:
    """Call a verb of the home's authority; members that are None are left out.

    Raises:
        AccordError: There is none, or it refuses.
    """
    from accord.station import logs

    settings = cli.station_settings()
    said = {name: value for name, value in body.items() if value is not None}
    with logs.configured(settings.log.model_copy(update={"level": "error"})), _printable_errors():
        answer = _ask_station(settings, verb, said)
        return answer if answer is not None else asyncio.run(_ask_store(settings, verb, said))


def ask_registry(
    cli: Cli, registry: str, token_file: Path | None, plain_http: bool, verb: str, **body: Any
) -> dict[str, Any]:
    """Call a verb of a registry: that of the home (`home`), or of the authority at a URL.

    Raises:
        AccordError: There is none, or it refuses.
    """
    if registry == HOME:
        return ask_authority(cli, verb, **body)
    from accord.authority.client import remote_authority

    said = {name: value for name, value in body.items() if value is not None}
    with _printable_errors():
        token = _registry_token(token_file)
        return remote_authority(registry, token, plain_http=plain_http).ask(verb, said)


def _registry_token(token_file: Path | None) -> "SecretStr":
    from pydantic import SecretStr

    from accord.authority.rules.errors import AuthorityError, Code
    from accord.relay.platforms.settings import read_secret_file

    if token_file is not None:
        return read_secret_file(str(token_file), "--token-file")
    if token := os.environ.get("ACCORD_REGISTRY_TOKEN"):
        return SecretStr(token)
    if file := os.environ.get("ACCORD_REGISTRY_TOKEN_FILE"):
        return read_secret_file(file, "environment variable ACCORD_REGISTRY_TOKEN_FILE")
    raise AuthorityError(
        Code.UNKNOWN_SESSION,
        "a token is needed to reach a registry elsewhere",
        mend="make one there with `accord authority registry-token new`, then give it with "
        "--token-file or ACCORD_REGISTRY_TOKEN",
    )


@contextmanager
def _printable_errors() -> Iterator[None]:
    from accord.authority.rules.errors import AuthorityError

    try:
        yield
    except AuthorityError as error:
        # It may repeat what somebody else called a deployment.
        raise AuthorityError(
            error.code,
            printable(error.what),
            where=None if error.where is None else printable(error.where),
            mend=None if error.mend is None else printable(error.mend),
            findings=error.findings,
        ) from error


def format_seconds(seconds: float | None) -> str:
    """A time as people read it."""
    from accord.kernel.clock import format_time

    return "never" if seconds is None else format_time(seconds)


def _ask_station(settings: "Settings", verb: str, body: dict[str, Any]) -> dict[str, Any] | None:
    """The answer of an authority that runs; None where none does."""
    import httpx

    from accord.authority.client import refusal_of
    from accord.authority.rules.errors import AuthorityError, Code
    from accord.station.home import Home, home_holder
    from accord.web import outgoing

    held = home_holder(Home(settings.home))
    file = Home(settings.home).authority_token
    if held is None or not held.address.startswith("http") or not file.exists():
        return None
    try:
        token = file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        raise AuthorityError(
            Code.FORBIDDEN,
            "the operator's token cannot be read",
            where=str(file),
            mend="run this command as the user who runs the authority",
        ) from None
    try:
        # The address is this machine's own: a proxy has no business between.
        with outgoing.bounded_sync_client(_MAX_ANSWER, timeout=_SECONDS, trust_env=False) as client:
            answer = client.post(
                f"{held.address}/admin/v1/{verb}",
                json=body,
                headers={"authorization": f"Bearer {token}"},
            )
            told = answer.json()
    except (httpx.HTTPError, ValueError):
        # A station that runs without an authority, or is just ending.
        return None
    if answer.is_success and isinstance(told, dict):
        return told
    if isinstance(told, dict) and "code" in told:
        raise refusal_of(told)
    if answer.status_code == _ABSENT:
        return None
    raise AuthorityError(
        Code.UNAVAILABLE,
        "the station's answer cannot be understood",
        mend="is it another version? restart it",
    )


async def _ask_store(settings: "Settings", verb: str, body: dict[str, Any]) -> dict[str, Any]:
    from accord.kernel.clock import SystemClock
    from accord.station.authority import operate_authority

    async with operate_authority(settings, SystemClock()) as operating:
        return dict(await operating.do(verb, body))


T = TypeVar("T")

Instance = Annotated[str, typer.Argument(help="The agent's instance id; `instances` lists them.")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only those of this tenant.")]

OPERATOR = "operator"


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """The options of `accord relay` that name a connector on another machine."""

    connector: str | None = None
    token: str | None = None
    token_file: Path | None = None
    plain_http: bool = False


_NOWHERE_ELSE: Final = RemoteOptions()
remote_options: ContextVar[RemoteOptions] = ContextVar("remote_options", default=_NOWHERE_ELSE)
"""Set by `accord relay` before any of its commands runs."""


def ask_relay(cli: Cli, verb: str, **body: Any) -> dict[str, Any]:
    """Perform an operator's verb at the relay of a home, or at the connector that is named.

    Raises:
        AccordError: There is no relay, or it refuses.
    """
    from accord.relay.errors import RelayError

    try:
        remote = remote_connector(cli)
        if remote is not None:
            return remote.ask(verb, body)
        return _perform_here(cli, verb, body)
    except RelayError as error:
        # It may repeat what somebody else called an agent.
        raise RelayError(
            error.code,
            printable(error.what),
            where=None if error.where is None else printable(error.where),
            mend=None if error.mend is None else printable(error.mend),
        ) from error


def remote_connector(cli: Cli) -> "Remote | None":
    """The connector that the options of `accord relay`, or else the environment, name.

    A home that is named by --home precedes the environment.
    """
    options = remote_options.get()
    if options.connector is None and (options.token or options.token_file or options.plain_http):
        raise typer.BadParameter("name the connector with --connector")
    if options.connector is not None and cli.home is not None:
        raise typer.BadParameter(
            "a connector is either in a home or elsewhere", param_hint="--connector"
        )
    url = options.connector
    if url is None and cli.home is None:
        url = os.environ.get("ACCORD_RELAY_CONNECTOR") or None
    if url is None:
        return None
    from accord.relay import remote

    return remote.remote_connector(url, _operator_token(options), plain_http=options.plain_http)


def _operator_token(options: RemoteOptions) -> "SecretStr":
    from pydantic import SecretStr

    from accord.relay.errors import Code, RelayError
    from accord.relay.platforms.settings import read_secret_file

    if options.token is not None and options.token_file is not None:
        raise typer.BadParameter("give either --token or --token-file")
    if options.token == STDIN:
        return SecretStr(sys.stdin.readline().strip())
    if options.token is not None:
        return SecretStr(options.token)
    if options.token_file is not None:
        return read_secret_file(str(options.token_file), "--token-file")
    if token := os.environ.get("ACCORD_RELAY_TOKEN"):
        return SecretStr(token)
    if file := os.environ.get("ACCORD_RELAY_TOKEN_FILE"):
        return read_secret_file(file, "environment variable ACCORD_RELAY_TOKEN_FILE")
    raise RelayError(
        Code.UNAUTHORIZED,
        "an operator's token is needed to reach a connector elsewhere",
        mend="make one there with `accord relay operator-token new`, then give it with "
        "--token-file or ACCORD_RELAY_TOKEN",
    )


def _perform_here(cli: Cli, verb: str, body: dict[str, Any]) -> dict[str, Any]:
    from accord.relay.connector.admin import Operation, perform

    async def work(connector: "Connector") -> dict[str, Any]:
        operation = Operation(connector.control, connector.delivery, connector.store, OPERATOR)
        return await perform(operation, verb, body)

    return with_relay(cli, work)


def with_relay(cli: Cli, work: Callable[["Connector"], Awaitable[T]]) -> T:
    """Run `work` with the relay of a home, whether or not its station runs.

    Raises:
        AccordError: There is no relay, it refuses, or another machine's was named.
    """
    from accord.kernel.clock import SystemClock
    from accord.relay.errors import RelayError
    from accord.station import logs
    from accord.station.relay import operate_relay

    refuse_remote(cli, "this command works on the connector's own machine only")
    settings = cli.station_settings()

    async def run() -> T:
        async with operate_relay(settings, SystemClock(), OPERATOR) as connector:
            return await work(connector)

    with logs.configured(settings.log.model_copy(update={"level": "error"})):
        try:
            return asyncio.run(run())
        except RelayError as error:
            # It may repeat what somebody else called an agent.
            raise RelayError(
                error.code, printable(error.what), where=error.where, mend=error.mend
            ) from error


def refuse_remote(cli: Cli, what: str) -> None:
    """Refuse a command that works on this machine, where another's connector is named.

    Raises:
        RelayError: One is named; `what` says what the command does here.
    """
    from accord.relay.errors import Code, RelayError

    if remote_connector(cli) is not None:
        raise RelayError(
            Code.BAD_REQUEST,
            what,
            mend="run it on the connector's machine, without --connector and "
            "ACCORD_RELAY_CONNECTOR, or name a home with --home",
        )


def with_instance(
    cli: Cli, instance: str, work: Callable[["Connector", "Principal"], Awaitable[T]]
) -> T:
    """Run `work` with the relay and the principal of an instance."""

    async def run(connector: "Connector") -> T:
        return await work(connector, await connector.control.principal(instance))

    return with_relay(cli, run)


def format_millis(milliseconds: int) -> str:
    """A time as people read it."""
    from accord.kernel.clock import format_time

    return format_time(milliseconds / 1000)
