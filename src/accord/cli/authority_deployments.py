"""`accord authority deploy | plans | accept | reject | set | show | narrow | instance`."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from accord.cli.arguments import printable, read_contract
from accord.cli.context import App, Cli
from accord.cli.planes import By, Deployment, OfDeployment, ask_authority, format_seconds

app = App()
instance = App(no_args_is_help=True, epilog="Example: accord authority instance add shop KEY")

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
        Literal["service", "device"], typer.Option(help="What it is made of, when it is new.")
    ] = "service",
    compatibility: Annotated[
        Literal["strict", "mutable-dev"],
        typer.Option(help="Whether breaking changes wait for you, when it is new."),
    ] = "strict",
    shape: Annotated[
        list[str] | None, typer.Option(help="The manifest of a dependency that is not there yet.")
    ] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Accept what it asks for at once.")
    ] = False,
    by: By = _OPERATOR,
) -> None:
    """Make a deployment where there is none, and propose a contract for it."""
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
    plan: Annotated[str | None, typer.Argument(help="Show one plan whole.")] = None,
    deployment: OfDeployment = None,
    state: Annotated[
        Literal["pending", "accepted", "rejected", "expired", "all"],
        typer.Option(help="Only those that stand so."),
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
    """Accept a plan: what is desired changes, and is made real by a running authority."""
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
        typer.Option(help="Whether breaking changes wait for you."),
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
        typer.Option(help="A surface to take back, as in 'bank@v1 rpc Bank.Get call'."),
    ] = None,
    capability: Annotated[list[str] | None, typer.Option(help="A capability to take back.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Take back every surface and capability.")
    ] = False,
    by: By = _OPERATOR,
) -> None:
    """Take back surfaces and capabilities that were accepted.

    Sessions lose them at once. A service that needs one waits when it starts next, with a plan.
    """
    if not surface and not capability and not everything:
        raise typer.BadParameter("name what to take back with --surface or --capability, or --all")
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
    name: Annotated[str | None, typer.Option(help="How it is called.")] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="Make a new key and keep it here, for the service.")
    ] = None,
) -> None:
    """Let a session key run as an instance of a deployment."""
    if (key is None) == (key_file is None):
        raise typer.BadParameter("give a session key, or a --key-file to make one in")
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
    """List who may run what."""
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
    """Shut one instance out, or let it in again."""
    told = ask_authority(cli, "instances/set", key=key, disabled=disabled)
    cli.emit(told, f"{key} is {'disabled' if disabled else 'enabled'}.")


@instance.command("remove", epilog="Example: accord authority instance remove KEY")
def remove_instance(cli: Cli, key: Key) -> None:
    """Forget an instance, with what it offers."""
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
