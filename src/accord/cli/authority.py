"""`accord authority`: who implements which contract, what was accepted, and who may what.

Puts the verbs together and has those that look; each group of the others has a file of its own.
"""

import contextlib
from typing import TYPE_CHECKING, Annotated

import typer

from accord.cli import authority_people, authority_plans, report
from accord.cli.announcing import announcement, as_data
from accord.cli.authority_reach import OfDeployment, ask, moment
from accord.cli.community_node import show_lines
from accord.cli.contract_reading import printable
from accord.cli.options import Config, Home, Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from accord.station.plane import PlaneReport
    from accord.station.run import Ground

app = typer.Typer(no_args_is_help=True, epilog="Example: accord authority plans")


@app.command(epilog="Example: accord authority serve --home ./authority --port 7100")
def serve(
    home: Home = None,
    config: Config = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Listen here instead; 0 takes a free one.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Run an authority alone, without the other planes, until it is told to stop.

    It starts a NATS server of its own, unless the setting `authority.nats_urls` names yours.
    """
    from accord.station.run import authorities
    from accord.station.run import serve as run
    from accord.station.settings import home_option, load

    settings = load(home, config)
    if port is not None:
        chosen = settings.station.model_copy(update={"port": port})
        settings = settings.model_copy(update={"station": chosen})

    def announce(ground: "Ground", reports: "Sequence[PlaneReport]") -> None:
        # An authority goes on when whoever read its first words has gone.
        with contextlib.suppress(BrokenPipeError):
            if as_json:
                report.show_json(
                    {
                        "address": ground.address,
                        "home": str(ground.settings.home),
                        "down": as_data(reports),
                    }
                )
            else:
                option = home_option(ground.settings.home)
                where = f" at {ground.address}"
                typer.echo(announcement("The authority", where, reports, home=option))

    clean = run(settings, announce=announce, assemble=authorities)
    raise typer.Exit(0 if clean else report.FAILED)


@app.command(epilog="Example: accord authority status --json")
def status(home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Tell what is active, what waits for a decision, and what is not real yet."""
    told = ask(home, config, "status")
    if as_json:
        report.show_json(told)
        return
    typer.echo(f"{told['deployments']} deployments, {told['contracts']} active contracts")
    typer.echo(f"{told['pending_plans']} plans wait for a decision")
    for each in told["to_reconcile"]:
        typer.echo(f"not real yet: {printable(each)}")
    for each in told["issues"]:
        typer.echo(f"catalog: {printable(str(each))}")


@app.command(epilog="Example: accord authority offers --deployment shop")
def offers(
    deployment: OfDeployment = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List which instance offers which contract, and whether it is there."""
    told = ask(home, config, "offers/list", deployment=deployment)
    if as_json:
        report.show_json(told)
        return
    show_lines(
        [
            (
                printable(each["deployment"]),
                each["instance"],
                printable(each["contract_id"]),
                each["digest"],
                "live" if each["live"] else f"since {moment(each['stale_at'])} without connection",
                f"until {moment(each['expires_at'])}",
            )
            for each in told["offers"]
        ]
    )


@app.command(epilog="Example: accord authority catalog --json")
def catalog(home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """List the contracts that are active now, with what is wrong among them."""
    told = ask(home, config, "catalog")
    if as_json:
        report.show_json(told)
        return
    show_lines(
        [
            (printable(each["id"]), each["digest"], printable(each["displayName"]))
            for each in told["catalog"]["contracts"]
        ]
    )
    for each in told["issues"]:
        report.say(f"issue: {printable(str(each))}")


@app.command(epilog="Example: accord authority history --deployment shop")
def history(
    deployment: OfDeployment = None,
    since: Annotated[int, typer.Option(min=0, help="Only what came after this revision.")] = 0,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Tell what was presented, accepted, rejected, offered and withdrawn, in order."""
    told = ask(home, config, "history", deployment=deployment, since=since)
    if as_json:
        report.show_json(told)
        return
    show_lines(
        [
            (
                str(each["revision"]),
                each["act"],
                printable(each["deployment"] or "-"),
                printable(each["contractId"] or "-"),
                each["digest"] or "-",
                printable(each["by"]),
            )
            for each in told["history"]
        ]
    )


@app.command(epilog="Example: accord authority reconcile shop")
def reconcile(
    deployment: Annotated[
        str | None, typer.Argument(help="Only this deployment (default: all).")
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Make what was accepted real now, and repair what has drifted, on the running authority."""
    told = ask(home, config, "reconcile", deployment=deployment)
    if as_json:
        report.show_json(told)
        return
    for each in told["reconciled"]:
        why = f": {printable(each['why'])}" if each.get("why") else ""
        typer.echo(f"{printable(each['deployment'])} is {each['status']}{why}")
    if any(each["status"] == "failed" for each in told["reconciled"]):
        raise typer.Exit(report.FAILED)


app.registered_commands += authority_plans.app.registered_commands
app.add_typer(authority_plans.instance, name="instance", help="Say who runs a deployment.")
app.add_typer(authority_people.people, name="people", help="Say who can log in.")
app.add_typer(authority_people.session, name="session", help="See and end sessions.")
app.add_typer(authority_people.override, name="override", help="Grant capabilities to clients.")
app.add_typer(authority_people.portal, name="portal", help="Put pages of yours before ours.")
