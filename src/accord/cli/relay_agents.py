"""`accord relay token | instances | link | rotate | revoke | pardon`: agents and their gateways."""

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import report
from accord.cli.community_node import show_lines
from accord.cli.contract_reading import printable
from accord.cli.options import Config, Home, Json
from accord.cli.relay_store import Instance, Tenant, moment, with_instance, with_relay

if TYPE_CHECKING:
    from accord.relay.connector.assembly import Connector
    from accord.relay.connector.control import LinkCode, Principal, Rotated
    from accord.relay.connector.operating import Minted

app = typer.Typer()
token = typer.Typer(no_args_is_help=True, epilog="Example: accord relay token new --instance echo")


@token.command(epilog="Example: accord relay token new --instance echo --hours 1")
def new(
    tenant: Annotated[str, typer.Option(help="Whose agent it will be.")] = "default",
    instance: Annotated[
        str | None, typer.Option(help="The agent's instance id (default: a new one).")
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="What people read when they link it (default: the id).")
    ] = None,
    hours: Annotated[
        float, typer.Option(min=0.001, max=8760, help="For how long it can be used.")
    ] = 24.0,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Print a token by which one gateway can enrol, once. Hand it over as you would a password."""

    async def mint(connector: "Connector") -> Any:
        return await connector.control.mint_token(
            tenant, instance, name=name, seconds=max(1, round(hours * 3600))
        )

    made = with_relay(home, config, mint)
    if as_json:
        report.show_json(
            {
                "token": made.token,
                "tenant": made.tenant,
                "instance": made.instance,
                "expires_at": moment(made.expires_at),
            }
        )
        return
    report.say(f"The instance is {printable(made.instance)}; until {moment(made.expires_at)}:")
    typer.echo(made.token)


@token.command("list", epilog="Example: accord relay token list --tenant default")
def list_tokens(
    tenant: Tenant = None, home: Home = None, config: Config = None, as_json: Json = False
) -> None:
    """List the enrolment tokens that were made lately, without the tokens themselves."""
    from accord.relay.connector.operating import enrolment_tokens

    async def read(connector: "Connector") -> list["Minted"]:
        return await connector.store.read(lambda c: enrolment_tokens(c, tenant))

    found = with_relay(home, config, read)
    if as_json:
        report.show_json({"tokens": [asdict(each) for each in found]})
        return
    show_lines(
        [
            (
                printable(each.tenant),
                printable(each.instance),
                f"until {moment(each.expires_at)}",
                "not used" if each.used_at is None else f"used {moment(each.used_at)}",
            )
            for each in found
        ]
    )


@app.command(epilog="Example: accord relay instances --json")
def instances(
    tenant: Tenant = None, home: Home = None, config: Config = None, as_json: Json = False
) -> None:
    """List the agents that have enrolled, and how each is doing."""

    async def read(connector: "Connector") -> list[dict[str, Any]]:
        return [
            {
                **asdict(each),
                "live": each.live,
                "empty": await connector.delivery.is_empty(each.instance),
            }
            for each in await connector.control.instances(tenant)
        ]

    found = with_relay(home, config, read)
    if as_json:
        report.show_json({"instances": found})
        return
    show_lines(
        [
            (
                printable(each["instance"]),
                printable(each["tenant"]),
                f"gateway {printable(each['gateway_id'])}",
                each["origin"],
                _standing(each),
                "nothing waits" if each["empty"] else "messages wait",
            )
            for each in found
        ]
    )


@app.command(epilog="Example: accord relay link echo")
def link(
    instance: Instance,
    account: Annotated[
        tuple[str, str] | None,
        typer.Option(help="Link this account at once: its platform, and the user id there."),
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Print a code by which a person links a chat account to an agent.

    For an account that no person writes from, such as a program's, --account links it by your word.
    """
    if account is not None:
        platform, user = account
        with_relay(home, config, lambda each: each.control.bind(instance, platform, user))
        if as_json:
            report.show_json({"instance": instance, "platform": platform, "user": user})
        else:
            typer.echo(f"{printable(user)} on {printable(platform)} is linked.")
        return

    async def offer(connector: "Connector", caller: "Principal") -> "LinkCode":
        return await connector.control.link(caller)

    made = with_instance(home, config, instance, offer)
    if as_json:
        report.show_json({"code": made.code, "expires_at": moment(made.expires_at)})
        return
    report.say(
        f"Until {moment(made.expires_at)}, send the bot this as a direct message, "
        "then answer its question with yes:"
    )
    typer.echo(f"/link {made.code}")


@app.command(epilog="Example: accord relay rotate echo --grace 600")
def rotate(
    instance: Instance,
    grace: Annotated[
        int,
        typer.Option(min=0, max=604_800, help="For how many seconds the old secret stays good."),
    ] = 3600,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Give an agent's gateway a new secret, and print it; the old one stays good for a while."""

    async def change(connector: "Connector", caller: "Principal") -> "Rotated":
        return await connector.control.rotate(caller, grace_seconds=grace)

    made = with_instance(home, config, instance, change)
    if as_json:
        report.show_json({"secret": made.secret, "old_until": moment(made.old_until)})
        return
    report.say(f"The old secret is good until {moment(made.old_until)}; the new one is:")
    typer.echo(made.secret)


Which = Annotated[str | None, typer.Argument(help="The instance; or give --tenant.")]
Whole = Annotated[str | None, typer.Option("--tenant", help="A tenant with all its agents.")]


@app.command(epilog="Example: accord relay revoke echo")
def revoke(
    instance: Which = None,
    tenant: Whole = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Take an agent away at once, or switch off a tenant with all its agents.

    Sockets are closed and what waits becomes dead letters. An agent loses its links, channels and
    policies; a tenant that is switched on again has kept them.
    """
    _one_of(instance, tenant)

    async def end(connector: "Connector") -> list[str]:
        if tenant is not None:
            return await connector.control.suspend(tenant)
        await connector.control.revoke(instance or "")
        return [instance or ""]

    ended = with_relay(home, config, end)
    if as_json:
        report.show_json({"revoked": ended})
    else:
        typer.echo(f"Revoked: {', '.join(map(printable, ended)) or 'nobody, it had no agents'}.")


@app.command(epilog="Example: accord relay pardon echo")
def pardon(
    instance: Which = None,
    tenant: Whole = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Let a revoked agent enrol again, or switch a tenant on again."""
    _one_of(instance, tenant)

    async def undo(connector: "Connector") -> bool:
        if tenant is not None:
            await connector.control.resume(tenant)
            return True
        return await connector.control.pardon(instance or "")

    done, name = with_relay(home, config, undo), instance or tenant or ""
    if as_json:
        report.show_json({"pardoned": name if done else None})
    elif done:
        typer.echo(f"Pardoned: {printable(name)}.")
    else:
        report.say(f"{printable(name)} may enrol already; no operator has revoked it.")


def _one_of(instance: str | None, tenant: str | None) -> None:
    if (instance is None) == (tenant is None):
        raise typer.BadParameter("name one instance, or one tenant with --tenant")


def _standing(record: dict[str, Any]) -> str:
    if record["suspended"]:
        return "its tenant is switched off"
    if record["revoked_at"] is not None:
        return f"revoked {moment(record['revoked_at'])}"
    return "live"
