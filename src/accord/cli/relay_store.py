"""The relay of a home, as an operator's commands reach it: by its store, whoever else runs.

A running connector learns of a change within a second. Owns the opening and the words for what is
missing. It decides nothing.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from accord.cli.contract_reading import printable

if TYPE_CHECKING:
    from accord.relay.connector.assembly import Connector
    from accord.relay.connector.control import Principal
    from accord.station.settings import Settings

T = TypeVar("T")

Instance = Annotated[str, typer.Argument(help="The agent's instance id; `instances` lists them.")]
Tenant = Annotated[str | None, typer.Option("--tenant", help="Only those of this tenant.")]

_OPERATOR = "operator"


def with_relay(
    home: Path | None, config: Path | None, work: Callable[["Connector"], Awaitable[T]]
) -> T:
    """Do something with the relay of a home, whether or not its station runs.

    Raises:
        AccordError: There is no relay, or it refuses.
    """
    from accord.kernel.clock import SystemClock
    from accord.relay.errors import RelayError
    from accord.station import logs
    from accord.station.relay import operated
    from accord.station.settings import load

    settings = load(home, config)
    need_home(settings)

    async def run() -> T:
        async with operated(settings, SystemClock(), _OPERATOR) as connector:
            return await work(connector)

    with logs.configured(settings.log.model_copy(update={"level": "error"})):
        try:
            return asyncio.run(run())
        except RelayError as error:
            # It may repeat what somebody else called an agent.
            raise RelayError(
                error.code, printable(error.what), where=error.where, mend=error.mend
            ) from error


def with_instance(
    home: Path | None,
    config: Path | None,
    instance: str,
    work: Callable[["Connector", "Principal"], Awaitable[T]],
) -> T:
    """Do something in the place of an instance."""

    async def run(connector: "Connector") -> T:
        return await work(connector, await connector.control.principal(instance))

    return with_relay(home, config, run)


def moment(milliseconds: int) -> str:
    """A time as people read it."""
    from accord.kernel.clock import format_time

    return format_time(milliseconds / 1000)


def need_home(settings: "Settings") -> None:
    """Go on only where a station has run once.

    Raises:
        StationError: None has.
    """
    from accord.station.errors import StationError
    from accord.station.home import Home

    if not Home(settings.home).device_key.exists():
        raise StationError(
            "there is no station here yet",
            where=str(settings.home),
            mend="start it once with `accord up` or `accord relay serve`, or name it with --home",
        )
