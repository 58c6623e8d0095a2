"""`accord authority`: who implements which contract, what was accepted, and who may do what."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from accord.cli import output
from accord.cli.arguments import printable, read_contract
from accord.cli.output import App, Cli
from accord.cli.planes import By, Deployment, OfDeployment, ask_authority, format_seconds
from accord.cli.station import Port, serve_plane

app = App(no_args_is_help=True, epilog="Example: accord authority plans")
instance = App(no_args_is_help=True, epilog="Example: accord authority instance add shop KEY")
people = App(no_args_is_help=True, epilog="Example: accord authority people add Ann")
session = App(no_args_is_help=True, epilog="Example: accord authority session list")
override = App(no_args_is_help=True, epilog="Example: accord authority override list")
registry_token = App(
    no_args_is_help=True, epilog="Example: accord authority registry-token new ci --push"
)
portal = App(no_args_is_help=True, epilog="Example: accord authority portal list")
app.add_typer(instance, name="instance", help="Manage the instances of a deployment.")
app.add_typer(people, name="people", help="Manage the people who can log in.")
app.add_typer(session, name="session", help="List and end sessions.")
app.add_typer(override, name="override", help="Grant capabilities to clients.")
app.add_typer(
    registry_token, name="registry-token", help="Manage tokens for the registry of contracts."
)
app.add_typer(portal, name="portal", help="Manage your own pages before the built-in login pages.")


@app.command(epilog="Example: accord authority serve --home ./authority --port 7100")
def serve(cli: Cli, *, port: Port = None) -> None:
    """Run an authority alone, without the other planes, until SIGTERM or Ctrl-C.

    It starts a NATS server of its own, unless the setting `authority.nats_urls` names yours.
    """
    from accord.station.run import authority_planes

    serve_plane(cli, "The authority", authority_planes, port)


@app.command(epilog="Example: accord authority status --json")
def status(cli: Cli) -> None:
    """Show what is active, what waits for a decision, and what is not applied yet."""
    told = ask_authority(cli, "status")
    cli.emit(
        told,
        [
            f"{told['deployments']} deployments, {told['contracts']} active contracts",
            f"{told['pending_plans']} plans wait for a decision",
            *(f"not applied yet: {printable(each)}" for each in told["to_reconcile"]),
            *(f"catalog: {printable(str(each))}" for each in told["issues"]),
        ],
    )


@app.command(epilog="Example: accord authority offers --deployment shop")
def offers(cli: Cli, deployment: OfDeployment = None) -> None:
    """List which instance offers which contract, and whether it is connected."""
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
    since: Annotated[int, typer.Option(min=0, help="Only entries after this revision.")] = 0,
) -> None:
    """Show what was presented, accepted, rejected, offered and withdrawn, in order."""
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
    """Apply what was accepted now, and repair drift, on the running authority."""
    told = ask_authority(cli, "reconcile", deployment=deployment)
    lines = []
    for each in told["reconciled"]:
        why = f": {printable(each['why'])}" if each.get("why") else ""
        lines.append(f"{printable(each['deployment'])} is {each['status']}{why}")
    cli.emit(told, lines)
    if any(each["status"] == "failed" for each in told["reconciled"]):
        raise typer.Exit(output.FAILED)


PlanId = Annotated[str, typer.Argument(help="The plan's id, as `plans` shows it.")]
Key = Annotated[str, typer.Argument(help="The session key, 43 characters of base64url.")]
_OPERATOR = "operator"


@app.command(epilog="Example: accord authority deploy shop ./shop.contract.json --accept")
def deploy(
    cli: Cli,
    deployment: Deployment,
    contract: Annotated[
        str | None, typer.Argument(help="The manifest, a JSON file; - is stdin.")
    ] = None,
    kind: Annotated[
        Literal["service", "device"], typer.Option(help="The kind of a new deployment.")
    ] = "service",
    compatibility: Annotated[
        Literal["strict", "mutable-dev"],
        typer.Option(help="Whether breaking changes of a new deployment must be accepted."),
    ] = "strict",
    shape: Annotated[
        list[str] | None, typer.Option(help="The manifest of a dependency that is not there yet.")
    ] = None,
    accept: Annotated[bool, typer.Option("--accept", help="Accept the plan immediately.")] = False,
    by: By = _OPERATOR,
) -> None:
    """Create a deployment if there is none, and propose a contract for it."""
    told = ask_authority(
        cli,
        "deploy",
        deployment=deployment,
        kind=kind,
        compatibility=compatibility,
        manifest=None if contract is None else read_contract(contract),
        shapes=[read_contract(each) for each in shape or ()],
        accept=accept,
        by=by,
    )
    plan = told["plan"]
    if plan is None:
        cli.emit(told, f"{printable(deployment)} is there and has all that it needs.")
        return
    cli.emit(told, _plan_lines(plan))
    if plan["state"] == "pending":
        cli.note(f"accept it with `accord authority accept {plan['id']}`")


@app.command(epilog="Example: accord authority plans --deployment shop")
def plans(
    cli: Cli,
    plan: Annotated[str | None, typer.Argument(help="Show one plan in full.")] = None,
    deployment: OfDeployment = None,
    state: Annotated[
        Literal["pending", "accepted", "rejected", "expired", "all"],
        typer.Option(help="Only plans in this state."),
    ] = "pending",
) -> None:
    """List what waits for a decision, and why."""
    if plan is not None:
        told = ask_authority(cli, "plans/show", plan=plan)
        cli.emit(told, _plan_lines(told["plan"]))
        return
    wanted = None if state == "all" else state
    told = ask_authority(cli, "plans/list", deployment=deployment, state=wanted)
    cli.emit(
        told,
        (
            (
                each["id"],
                printable(each["deployment"]),
                each["classification"],
                each["state"],
                printable(each["contract_id"]),
                each["digest"],
                format_seconds(each["created_at"]),
            )
            for each in told["plans"]
        ),
    )


@app.command(epilog="Example: accord authority accept 01JQ8Z6S3N4TP7XGW5KE2RHV9B")
def accept(cli: Cli, plan: PlanId, by: By = _OPERATOR) -> None:
    """Accept a plan; a running authority then applies it."""
    told = ask_authority(cli, "plans/accept", plan=plan, by=by)
    cli.emit(told, f"Accepted for {printable(told['plan']['deployment'])}.")


@app.command(epilog="Example: accord authority reject 01JQ8Z6S3N4TP7XGW5KE2RHV9B --why 'too much'")
def reject(
    cli: Cli,
    plan: PlanId,
    why: Annotated[str, typer.Option(help="The reason, for the history.")] = "",
    by: By = _OPERATOR,
) -> None:
    """Reject a plan: nothing changes."""
    told = ask_authority(cli, "plans/reject", plan=plan, by=by, why=why or None)
    cli.emit(told, f"Rejected for {printable(told['plan']['deployment'])}.")


@app.command("set", epilog="Example: accord authority set shop --compatibility mutable-dev")
def set_deployment(
    cli: Cli,
    deployment: Deployment,
    compatibility: Annotated[
        Literal["strict", "mutable-dev"] | None,
        typer.Option(help="Whether breaking changes must be accepted."),
    ] = None,
    disabled: Annotated[
        bool | None, typer.Option("--disable/--enable", help="Whether it may run.")
    ] = None,
    calls: Annotated[
        list[str] | None,
        typer.Option(
            help="A contract that it may use as a caller without a plan, in place of those before; "
            "* is every one, `none` takes them back."
        ),
    ] = None,
) -> None:
    """Change a deployment.

    In mutable-dev, changes that break a contract which it implements already need no acceptance;
    whatever asks for more than was accepted still does.
    """
    told = ask_authority(
        cli,
        "deployments/set",
        deployment=deployment,
        compatibility=compatibility,
        disabled=disabled,
        calls=[] if calls == ["none"] else calls,
    )
    made = told["deployment"]
    stands = "disabled" if made["disabled"] else "enabled"
    cli.emit(told, f"{printable(made['id'])} is {made['compatibility']} and {stands}.")


@app.command(epilog="Example: accord authority show shop")
def show(cli: Cli, deployment: Deployment) -> None:
    """Show what was accepted for a deployment."""
    told = ask_authority(cli, "deployments/show", deployment=deployment)
    made = told["deployment"]
    stands = "disabled" if made["disabled"] else "enabled"
    title = f"{printable(made['id'])}: {made['kind']}, {made['compatibility']}, {stands}"
    desired = made["desired"]
    lines = [
        *(("contract", f"{name} {digest}") for name, digest in desired["contracts"].items()),
        *(("calls", each) for each in made["calls"]),
        *(("surface", each) for each in desired["surfaces"]),
        *(("capability", each) for each in desired["capabilities"]),
        *(("resource", each) for each in desired["resources"]),
    ]
    cli.emit(told, [title, *(f"  {what}: {printable(value)}" for what, value in lines)])


@app.command(epilog="Example: accord authority narrow shop --capability bank::read")
def narrow(
    cli: Cli,
    deployment: Deployment,
    surface: Annotated[
        list[str] | None,
        typer.Option(help="A surface to revoke, as in 'bank@v1 rpc Bank.Get call'."),
    ] = None,
    capability: Annotated[list[str] | None, typer.Option(help="A capability to revoke.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Revoke every surface and capability.")
    ] = False,
    by: By = _OPERATOR,
) -> None:
    """Revoke surfaces and capabilities that were accepted.

    Sessions lose them at once. A service that needs one waits at its next start until a new plan is
    accepted.
    """
    if not surface and not capability and not everything:
        raise typer.BadParameter("name what to revoke with --surface or --capability, or --all")
    told = ask_authority(
        cli,
        "deployments/narrow",
        deployment=deployment,
        surfaces=surface or [],
        capabilities=capability or [],
        everything=everything,
        by=by,
    )
    left = told["deployment"]["desired"]
    cli.emit(
        told,
        f"{printable(deployment)} may use {len(left['surfaces'])} surfaces with "
        f"{len(left['capabilities'])} capabilities.",
    )


@instance.command("add", epilog="Example: accord authority instance add shop KEY --name shop-1")
def add_instance(
    cli: Cli,
    deployment: Deployment,
    key: Annotated[
        str | None, typer.Argument(help="Its session key (default: a new one in --key-file).")
    ] = None,
    name: Annotated[str | None, typer.Option(help="Its name.")] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="Create a new key in this file, for the service.")
    ] = None,
) -> None:
    """Let a session key run as an instance of a deployment."""
    if (key is None) == (key_file is None):
        raise typer.BadParameter("give a session key, or a --key-file to create one in")
    added = _made_key(key_file) if key_file is not None else key
    try:
        told = ask_authority(cli, "instances/add", deployment=deployment, key=added, name=name)
    except BaseException:
        if key_file is not None:
            key_file.unlink(missing_ok=True)  # it was made for nothing, and is in the way next time
        raise
    made = told["instance"]
    cli.emit(told, f"{printable(made['name'])} of {printable(made['deployment'])}: {made['key']}")


@instance.command("list", epilog="Example: accord authority instance list --json")
def list_instances(cli: Cli, deployment: OfDeployment = None) -> None:
    """List instances and their deployments."""
    told = ask_authority(cli, "instances/list", deployment=deployment)
    cli.emit(
        told,
        (
            (
                each["key"],
                printable(each["deployment"]),
                printable(each["name"]),
                "disabled" if each["disabled"] else "enabled",
            )
            for each in told["instances"]
        ),
    )


@instance.command("set", epilog="Example: accord authority instance set KEY --disable")
def set_instance(
    cli: Cli,
    key: Key,
    disabled: Annotated[bool, typer.Option("--disable/--enable", help="Whether it may run.")],
) -> None:
    """Disable one instance, or enable it again."""
    told = ask_authority(cli, "instances/set", key=key, disabled=disabled)
    cli.emit(told, f"{key} is {'disabled' if disabled else 'enabled'}.")


@instance.command("remove", epilog="Example: accord authority instance remove KEY")
def remove_instance(cli: Cli, key: Key) -> None:
    """Remove an instance and its offers."""
    told = ask_authority(cli, "instances/remove", key=key)
    cli.emit(told, f"Removed {key}.")


def _made_key(file: Path) -> str:
    from accord.contracts.session_proof import session_key
    from accord.kernel.signing import SigningKey

    return session_key(SigningKey.create(file))


def _plan_lines(plan: dict[str, Any]) -> Iterator[str]:
    yield f"{plan['id']}: {plan['classification']} for {printable(plan['deployment'])}"
    yield f"  {plan['state']}, contract {printable(plan['contract_id'])} {plan['digest']}"
    for part, value in plan["delta"].items():
        for line in _lines(value):
            yield f"  {printable(part)}: {printable(line)}"


_SIGNS = {"added": "+", "changed": "~", "removed": "-"}


def _lines(value: Any) -> list[str]:
    """A part of a plan: what comes and goes, what was found, or how it stands."""
    if isinstance(value, list):
        return [_line(each) for each in value]
    if isinstance(value, dict) and value.keys() <= _SIGNS.keys():
        return [f"{_SIGNS[how]} {_line(each)}" for how, some in value.items() for each in some]
    return [_line(value)] if value else []


def _line(value: Any) -> str:
    if not isinstance(value, dict):
        return str(value)
    if {"rule", "message"} <= value.keys():
        return f"{value.get('pointer') or '(whole document)'}: {value['message']} [{value['rule']}]"
    return " ".join(f"{name}={each}" for name, each in sorted(value.items()) if each is not None)


Name = Annotated[str, typer.Argument(help="The person's name or id.")]
Keys = Annotated[
    list[str] | None,
    typer.Option("--capability", help="A key, such as trellis.core::catalog.read."),
]
Contract = Annotated[str, typer.Argument(help="The id of the clients' contract.")]
Anchor = Annotated[
    str, typer.Argument(help="Their origin, such as https://app.example, or one session key.")
]
Which = Annotated[Literal["login", "device"], typer.Argument(help="What the page is for.")]
Selector = Annotated[
    str, typer.Argument(help="A contract id, an origin or a deployment; * for all others.")
]


@people.command("add", epilog="Example: accord authority people add Ann --capability notes::read")
def add(
    cli: Cli,
    name: Annotated[str, typer.Argument(help="The person's name.")],
    capability: Keys = None,
) -> None:
    """Add a person, and print a one-time link to log in and set a password."""
    told = ask_authority(cli, "people/add", name=name, capabilities=capability or [])
    link = ask_authority(cli, "people/link", name=told["person"]["id"])
    cli.note(f"Valid until {format_seconds(link['expires_at'])}, for one use:")
    cli.emit({**told, **link}, link["url"])


@people.command("list", epilog="Example: accord authority people list --json")
def list_people(cli: Cli) -> None:
    """List everybody who can log in."""
    told = ask_authority(cli, "people/list")
    cli.emit(
        told,
        (
            (
                each["id"],
                printable(each["name"]),
                "shut out" if each["disabled"] else "can log in",
                "has a password" if each["has_password"] else "has no password",
                printable(", ".join(each["capabilities"])),
            )
            for each in told["people"]
        ),
    )


@people.command("set", epilog="Example: accord authority people set Ann --grant notes::read")
def set_person(
    cli: Cli,
    name: Name,
    grant: Annotated[list[str] | None, typer.Option(help="A capability to add.")] = None,
    revoke: Annotated[list[str] | None, typer.Option(help="A capability to take away.")] = None,
    disabled: Annotated[
        bool | None, typer.Option("--disable/--enable", help="Whether the person can log in.")
    ] = None,
) -> None:
    """Change a person's capabilities; running sessions change at once."""
    told = ask_authority(
        cli, "people/set", name=name, grant=grant or [], revoke=revoke or [], disabled=disabled
    )
    held = printable(", ".join(told["person"]["capabilities"])) or "nothing"
    cli.emit(told, f"{printable(told['person']['name'])} holds {held}.")


@people.command("link", epilog="Example: accord authority people link Ann --hours 1")
def link_person(
    cli: Cli,
    name: Name,
    hours: Annotated[
        float, typer.Option(min=0.01, max=8760, help="For how long it can be used.")
    ] = 24.0,
) -> None:
    """Print a one-time login link for a person. Treat it like a password."""
    told = ask_authority(cli, "people/link", name=name, seconds=max(1, round(hours * 3600)))
    cli.note(f"Valid until {format_seconds(told['expires_at'])}, for one use:")
    cli.emit(told, told["url"])


@people.command("consents", epilog="Example: accord authority people consents Ann")
def consents(cli: Cli, name: Name) -> None:
    """List what a person agreed to and refused, the latest first."""
    told = ask_authority(cli, "people/consents", name=name)
    cli.emit(
        told,
        (
            (
                format_seconds(each["at"]),
                each["answer"],
                printable(each["contract_id"]),
                each["anchor"],
                each["digest"],
                printable(", ".join(each["delta"]["capabilities"])),
            )
            for each in told["consents"]
        ),
    )


@session.command("list", epilog="Example: accord authority session list --of Ann")
def list_sessions(
    cli: Cli,
    of: Annotated[
        str | None, typer.Option(help="Only those of a person, or of a deployment.")
    ] = None,
) -> None:
    """List the sessions of services, devices and people."""
    told = ask_authority(cli, "sessions/list", of=of)
    cli.emit(
        told,
        (
            (
                each["key"],
                each["holder"],
                printable(each["subject"]),
                printable(each["contract_id"] or "-"),
                f"until {format_seconds(each['expires_at'])}"
                if each["revoked_at"] is None
                else f"ended {format_seconds(each['revoked_at'])}",
            )
            for each in told["sessions"]
        ),
    )


@session.command("revoke", epilog="Example: accord authority session revoke KEY")
def revoke_session(
    cli: Cli, key: Annotated[str, typer.Argument(help="The session key, as `list` shows it.")]
) -> None:
    """End a session for good; its connections are cut within seconds."""
    told = ask_authority(cli, "sessions/revoke", key=key)
    cli.emit(told, f"Revoked {key}.")


@override.command(
    "set", epilog="Example: accord authority override set desk@v1 https://app.example"
)
def set_override(cli: Cli, contract: Contract, anchor: Anchor, capability: Keys = None) -> None:
    """Consent for people to what the clients of a contract ask for, and add capabilities."""
    told = ask_authority(
        cli, "overrides/set", contract=contract, anchor=anchor, capabilities=capability or []
    )
    cli.emit(told, f"{printable(contract)} at {printable(told['override']['anchor'])} is granted.")


@override.command("list", epilog="Example: accord authority override list --json")
def list_overrides(cli: Cli) -> None:
    """List what was granted to clients."""
    told = ask_authority(cli, "overrides/list")
    cli.emit(
        told,
        (
            (
                printable(each["contract_id"]),
                each["anchor"],
                printable(", ".join(each["capabilities"])),
            )
            for each in told["overrides"]
        ),
    )


@override.command(
    "drop", epilog="Example: accord authority override drop desk@v1 https://app.example"
)
def drop_override(cli: Cli, contract: Contract, anchor: Anchor) -> None:
    """Revoke what was granted to the clients of a contract."""
    told = ask_authority(cli, "overrides/drop", contract=contract, anchor=anchor)
    cli.emit(told, f"Dropped for {printable(contract)}.")


@portal.command(
    "set", epilog="Example: accord authority portal set login desk@v1 https://me.example"
)
def set_portal(
    cli: Cli,
    kind: Which,
    selector: Selector,
    url: Annotated[str, typer.Argument(help="The address of your page.")],
) -> None:
    """Show your own page before the built-in one, to which it redirects people."""
    told = ask_authority(cli, "portals/set", kind=kind, selector=selector, url=url)
    cli.emit(told, f"{printable(selector)} goes to {printable(url)}.")


@portal.command("list", epilog="Example: accord authority portal list --json")
def list_portals(cli: Cli) -> None:
    """List the pages that are shown before the built-in ones."""
    told = ask_authority(cli, "portals/list")
    cli.emit(
        told, ((each["kind"], printable(each["selector"]), each["url"]) for each in told["portals"])
    )


@portal.command("drop", epilog="Example: accord authority portal drop login desk@v1")
def drop_portal(cli: Cli, kind: Which, selector: Selector) -> None:
    """Send people to the built-in page again."""
    told = ask_authority(cli, "portals/drop", kind=kind, selector=selector)
    cli.emit(told, f"{printable(selector)} goes to the built-in page.")


@registry_token.command("new", epilog="Example: accord authority registry-token new ci --push")
def new_registry_token(
    cli: Cli,
    name: Annotated[str, typer.Argument(help="Who will hold it, such as ci.")],
    *,
    may_push: Annotated[
        bool, typer.Option("--push", help="It may push versions, too, and not only read.")
    ] = False,
    days: Annotated[int, typer.Option(min=1, max=366, help="Days for which it is good.")] = 90,
    by: By = _OPERATOR,
) -> None:
    """Make a token that is good for the registry and nothing else; it is shown once."""
    told = ask_authority(
        cli,
        "registry/tokens/add",
        name=name,
        may_push=may_push,
        seconds=days * 86_400,
        by=by,
    )
    until = format_seconds(told["registry_token"]["expires_at"])
    cli.emit(told, told["token"])
    cli.note(f"It is good until {until}; set ACCORD_REGISTRY_TOKEN to it where it is used.")


@registry_token.command("list", epilog="Example: accord authority registry-token list")
def list_registry_tokens(cli: Cli) -> None:
    """List the tokens of the registry, without their secrets."""
    told = ask_authority(cli, "registry/tokens/list")
    cli.emit(
        told,
        (
            (
                printable(each["name"]),
                "push and read" if each["may_push"] else "read",
                f"until {format_seconds(each['expires_at'])}",
                "" if each["revoked_at"] is None else "revoked",
            )
            for each in told["tokens"]
        ),
    )


@registry_token.command("revoke", epilog="Example: accord authority registry-token revoke ci")
def revoke_registry_token(
    cli: Cli, name: Annotated[str, typer.Argument(help="The token's name.")], by: By = _OPERATOR
) -> None:
    """End the tokens of a name at once."""
    told = ask_authority(cli, "registry/tokens/revoke", name=name, by=by)
    cli.emit(told, f"{printable(name)} is refused from now on.")
