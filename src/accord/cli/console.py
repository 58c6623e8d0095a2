"""`accord console link`: a way into the station's pages."""

import typer

from accord.cli import report
from accord.cli.options import Config, Home, Json

app = typer.Typer(no_args_is_help=True, epilog="Example: accord console link")


@app.callback()
def _console() -> None:
    """The station in a browser."""


@app.command(epilog="Example: accord console link --home ./station")
def link(home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Print a link that logs one browser in, once, within 15 minutes.

    The station may be running or not; then the link works as soon as it is up.
    """
    from accord.kernel.clock import SystemClock
    from accord.station.console import login_link
    from accord.station.errors import StationError
    from accord.station.home import Home as Place
    from accord.station.home import holder
    from accord.station.settings import load

    settings = load(home, config)
    if not Place(settings.home).device_key.exists():
        raise StationError(
            "there is no station here yet", where=str(settings.home), mend="start it: `accord up`"
        )
    if not settings.console.enabled:
        raise StationError(
            "this station has no console", where="[console] enabled", mend="set it to true"
        )
    held = holder(Place(settings.home))
    is_up = held is not None and held.address.startswith("http")
    host, port = settings.station.host, settings.station.port
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    if held is not None and is_up:
        address = held.address
    made = login_link(settings, SystemClock(), address)
    if as_json:
        report.show_json({"link": made, "station_is_up": is_up})
        return
    typer.echo(made)
    if not is_up:
        report.say("the station is not running; the link works once `accord up` has started it")
