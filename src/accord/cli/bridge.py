"""`accord bridge`: contracts over other protocols."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from accord.cli.arguments import printable, read_contract
from accord.cli.output import App
from accord.cli.shell import ContractFile, ShellCli, fabric_errors, stop_event, wait_first

if TYPE_CHECKING:
    from accord.fabric import Session

app = App(no_args_is_help=True, epilog="Example: accord bridge http shop.contract.json")


@app.callback()
def bridge() -> None:
    """Serve contracts over other protocols."""


@app.command(epilog="Example: accord bridge http shop.contract.json --port 8080")
def http(
    cli: ShellCli,
    contract: ContractFile,
    host: Annotated[str, typer.Option(help="The address that it listens on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 0,
    certificate: Annotated[
        Path | None,
        typer.Option(help="A PEM file with certificate and key; needed beyond this machine."),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="The token of callers (default: one in the home).")
    ] = None,
    within: Annotated[
        float, typer.Option(min=0.1, max=600, help="How many seconds a call may take.")
    ] = 30.0,
) -> None:
    """Serve the RPCs of a contract over HTTP until a signal comes.

    Each RPC is a POST to /rpc/NAME with its payload as JSON; /openapi.json describes them. Callers
    send the token as `Authorization: Bearer TOKEN`. The bridge calls as the shell of the home does
    (`accord rpc allow`), so its callers may do what the shell may with this contract.
    """
    from starlette.applications import Starlette

    from accord.authority.http.app import ensure_token
    from accord.bridge.http import HttpBridge, HttpLimits
    from accord.kernel.clock import SystemClock
    from accord.station.errors import StationError
    from accord.station.listener import Listener, bind

    target = read_contract(contract)
    if not target.get("rpc"):
        raise StationError("the contract has no RPC", where=printable(contract))
    if certificate is None and host not in ("127.0.0.1", "::1", "localhost"):
        raise StationError(
            f"without TLS the bridge may not listen on {printable(host)}",
            mend="give --certificate, or put a proxy that ends TLS before 127.0.0.1",
        )
    kept = token_file or cli.settings().home / "keys" / "bridge-http.token"
    token = ensure_token(kept)

    async def serve(session: "Session") -> None:
        made = HttpBridge(session.client(target), token, SystemClock(), HttpLimits(seconds=within))
        listener = Listener(Starlette(routes=list(made.routes())), certificate=certificate)
        with bind(host, port) as listening:
            serving = asyncio.create_task(listener.serve([listening]))
            try:
                await listener.serving.wait()
                scheme = "https" if certificate else "http"
                shown = f"[{host}]" if ":" in host else host
                url = f"{scheme}://{shown}:{listening.getsockname()[1]}"
                told = {"contract": target["id"], "url": url, "token_file": str(kept)}
                cli.emit(
                    told,
                    [f"{target['id']} is served at {url}/openapi.json", f"The token is in {kept}."],
                )
                sys.stdout.flush()
                await wait_first(stop_event().wait(), session.ended())
            finally:
                listener.should_exit = True
                await serving

    with fabric_errors(cli):
        cli.run(target, serve)
