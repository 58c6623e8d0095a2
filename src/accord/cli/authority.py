"""`accord authority`: who implements which contract, what was accepted, and who may what.

Puts the verbs together and has those that look; each group of the others has a file of its own.
"""

from typing import Annotated

import typer

from accord.cli import authority_deployments, authority_identities, output
from accord.cli.arguments import printable
from accord.cli.context import App, Cli
from accord.cli.planes import OfDeployment, ask_authority, format_seconds
from accord.cli.station import Port, serve_plane

app = App(no_args_is_help=True, epilog="Example: accord authority plans")


@app.command(epilog="Example: accord authority serve --home ./authority --port 7100")
def serve(cli: Cli, *, port: Port = None) -> None:
    """Run an authority alone, without the other planes, until it is told to stop.

    It starts a NATS server of its own, unless the setting `authority.nats_urls` names yours.
    """
    from accord.station.run import authority_planes

    serve_plane(cli, "The authority", authority_planes, port)


@app.command(epilog="Example: accord authority status --json")
def status(cli: Cli) -> None:
    """Tell what is active, what waits for a decision, and what is not real yet."""
    told = ask_authority(cli, "status")
    cli.emit(
        told,
        [
            f"{told['deployments']} deployments, {told['contracts']} active contracts",
            f"{told['pending_plans']} plans wait for a decision",
            *(f"not real yet: {printable(each)}" for each in told["to_reconcile"]),
            *(f"catalog: {printable(str(each))}" for each in told["issues"]),
        ],
    )


@app.command(epilog="Example: accord authority offers --deployment shop")
def offers(cli: Cli, deployment: OfDeployment = None) -> None:
    """List which instance offers which contract, and whether it is there."""
    told = ask_authority(cli, "offers/list", deployment=deployment)
    cli.emit(
        told,
        (
            (
                printable(each["deployment"]),
                each["instance"],
                printable(each["contract_id"]),
                each["digest"],
                "live"
                if each["live"]
                else f"since {format_seconds(each['stale_at'])} without connection",
                f"until {format_seconds(each['expires_at'])}",
            )
            for each in told["offers"]
        ),
    )


@app.command(epilog="Example: accord authority catalog --json")
def catalog(cli: Cli) -> None:
    """List the contracts that are active now, with what is wrong among them."""
    told = ask_authority(cli, "catalog")
    cli.emit(
        {**told, "catalog": output.RawJson(told["catalog"])},
        (
            (printable(each["id"]), each["digest"], printable(each["displayName"]))
            for each in told["catalog"]["contracts"]
        ),
    )
    for each in told["issues"]:
        cli.note(f"issue: {printable(str(each))}")


@app.command(epilog="Example: accord authority history --deployment shop")
def history(
    cli: Cli,
    deployment: OfDeployment = None,
    since: Annotated[int, typer.Option(min=0, help="Only what came after this revision.")] = 0,
) -> None:
    """Tell what was presented, accepted, rejected, offered and withdrawn, in order."""
    told = ask_authority(cli, "history", deployment=deployment, since=since)
    cli.emit(
        told,
        (
            (
                str(each["revision"]),
                each["act"],
                printable(each["deployment"] or "-"),
                printable(each["contractId"] or "-"),
                each["digest"] or "-",
                printable(each["by"]),
            )
            for each in told["history"]
        ),
    )


@app.command(epilog="Example: accord authority reconcile shop")
def reconcile(
    cli: Cli,
    deployment: Annotated[
        str | None, typer.Argument(help="Only this deployment (default: all).")
    ] = None,
) -> None:
    """Make what was accepted real now, and repair what has drifted, on the running authority."""
    told = ask_authority(cli, "reconcile", deployment=deployment)
    lines = []
    for each in told["reconciled"]:
        why = f": {printable(each['why'])}" if each.get("why") else ""
        lines.append(f"{printable(each['deployment'])} is {each['status']}{why}")
    cli.emit(told, lines)
    if any(each["status"] == "failed" for each in told["reconciled"]):
        raise typer.Exit(output.FAILED)


app.registered_commands += authority_deployments.app.registered_commands
app.add_typer(authority_deployments.instance, name="instance", help="Say who runs a deployment.")
app.add_typer(authority_identities.people, name="people", help="Say who can log in.")
app.add_typer(authority_identities.session, name="session", help="See and end sessions.")
app.add_typer(authority_identities.override, name="override", help="Grant capabilities to clients.")
app.add_typer(authority_identities.portal, name="portal", help="Put pages of yours before ours.")
