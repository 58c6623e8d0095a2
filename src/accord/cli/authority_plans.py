"""`accord authority deploy | plans | accept | reject | set | instance`: what is to run, and who."""

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from accord.cli import report
from accord.cli.authority_reach import By, Deployment, OfDeployment, ask, moment
from accord.cli.community_node import show_lines
from accord.cli.contract_reading import printable, read_contract
from accord.cli.options import Config, Home, Json

app = typer.Typer()
instance = typer.Typer(
    no_args_is_help=True, epilog="Example: accord authority instance add shop KEY"
)

PlanId = Annotated[str, typer.Argument(help="The plan's id, as `plans` shows it.")]
Key = Annotated[str, typer.Argument(help="The session key, 43 characters of base64url.")]
_OPERATOR = "operator"


@app.command(epilog="Example: accord authority deploy shop ./shop.contract.json --accept")
def deploy(
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
        list[str] | None,
        typer.Option(help="The manifest of a dependency that is not there yet."),
    ] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Accept what it asks for at once.")
    ] = False,
    by: By = _OPERATOR,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Make a deployment where there is none, and propose a contract for it."""
    told = ask(
        home,
        config,
        "deploy",
        deployment=deployment,
        kind=kind,
        compatibility=compatibility,
        manifest=None if contract is None else read_contract(contract),
        shapes=[read_contract(each) for each in shape or ()],
        accept=accept,
        by=by,
    )
    if as_json:
        report.show_json(told)
        return
    plan = told["plan"]
    if plan is None:
        typer.echo(f"{printable(deployment)} is there and has all that it needs.")
        return
    _show_plan(plan)
    if plan["state"] == "pending":
        report.say(f"accept it with `accord authority accept {plan['id']}`")


@app.command(epilog="Example: accord authority plans --deployment shop")
def plans(
    plan: Annotated[str | None, typer.Argument(help="Show one plan whole.")] = None,
    deployment: OfDeployment = None,
    state: Annotated[
        Literal["pending", "accepted", "rejected", "expired", "all"],
        typer.Option(help="Only those that stand so."),
    ] = "pending",
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List what waits for a decision, and why."""
    if plan is not None:
        told = ask(home, config, "plans/show", plan=plan)
        if as_json:
            report.show_json(told)
        else:
            _show_plan(told["plan"])
        return
    wanted = None if state == "all" else state
    told = ask(home, config, "plans/list", deployment=deployment, state=wanted)
    if as_json:
        report.show_json(told)
        return
    show_lines(
        [
            (
                each["id"],
                printable(each["deployment"]),
                each["classification"],
                each["state"],
                printable(each["contract_id"]),
                each["digest"],
                moment(each["created_at"]),
            )
            for each in told["plans"]
        ]
    )


@app.command(epilog="Example: accord authority accept 01JQ8Z6S3N4TP7XGW5KE2RHV9B")
def accept(
    plan: PlanId,
    by: By = _OPERATOR,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Accept a plan: what is desired changes, and is made real by a running authority."""
    told = ask(home, config, "plans/accept", plan=plan, by=by)
    if as_json:
        report.show_json(told)
    else:
        typer.echo(f"Accepted for {printable(told['plan']['deployment'])}.")


@app.command(epilog="Example: accord authority reject 01JQ8Z6S3N4TP7XGW5KE2RHV9B --why 'too much'")
def reject(
    plan: PlanId,
    why: Annotated[str, typer.Option(help="The reason, for the history.")] = "",
    by: By = _OPERATOR,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Reject a plan: nothing changes."""
    told = ask(home, config, "plans/reject", plan=plan, by=by, why=why or None)
    if as_json:
        report.show_json(told)
    else:
        typer.echo(f"Rejected for {printable(told['plan']['deployment'])}.")


@app.command("set", epilog="Example: accord authority set shop --compatibility mutable-dev")
def set_deployment(
    deployment: Deployment,
    compatibility: Annotated[
        Literal["strict", "mutable-dev"] | None,
        typer.Option(help="Whether breaking changes wait for you."),
    ] = None,
    disabled: Annotated[
        bool | None, typer.Option("--disable/--enable", help="Whether it may run.")
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Change a deployment."""
    told = ask(
        home,
        config,
        "deployments/set",
        deployment=deployment,
        compatibility=compatibility,
        disabled=disabled,
    )
    if as_json:
        report.show_json(told)
        return
    made = told["deployment"]
    stands = "disabled" if made["disabled"] else "enabled"
    typer.echo(f"{printable(made['id'])} is {made['compatibility']} and {stands}.")


@instance.command("add", epilog="Example: accord authority instance add shop KEY --name shop-1")
def add_instance(
    deployment: Deployment,
    key: Annotated[
        str | None, typer.Argument(help="Its session key (default: a new one in --key-file).")
    ] = None,
    name: Annotated[str | None, typer.Option(help="How it is called.")] = None,
    key_file: Annotated[
        Path | None, typer.Option(help="Make a new key and keep it here, for the service.")
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Let a session key run as an instance of a deployment."""
    if (key is None) == (key_file is None):
        raise typer.BadParameter("give a session key, or a --key-file to make one in")
    told = ask(
        home,
        config,
        "instances/add",
        deployment=deployment,
        key=key if key_file is None else _made_key(key_file),
        name=name,
    )
    if as_json:
        report.show_json(told)
    else:
        made = told["instance"]
        typer.echo(f"{printable(made['name'])} of {printable(made['deployment'])}: {made['key']}")


@instance.command("list", epilog="Example: accord authority instance list --json")
def list_instances(
    deployment: OfDeployment = None,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List who may run what."""
    told = ask(home, config, "instances/list", deployment=deployment)
    if as_json:
        report.show_json(told)
        return
    show_lines(
        [
            (
                each["key"],
                printable(each["deployment"]),
                printable(each["name"]),
                "disabled" if each["disabled"] else "enabled",
            )
            for each in told["instances"]
        ]
    )


@instance.command("set", epilog="Example: accord authority instance set KEY --disable")
def set_instance(
    key: Key,
    disabled: Annotated[bool, typer.Option("--disable/--enable", help="Whether it may run.")],
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Shut one instance out, or let it in again."""
    told = ask(home, config, "instances/set", key=key, disabled=disabled)
    if as_json:
        report.show_json(told)
    else:
        typer.echo(f"{key} is {'disabled' if disabled else 'enabled'}.")


@instance.command("remove", epilog="Example: accord authority instance remove KEY")
def remove_instance(
    key: Key, home: Home = None, config: Config = None, as_json: Json = False
) -> None:
    """Forget an instance, with what it offers."""
    told = ask(home, config, "instances/remove", key=key)
    if as_json:
        report.show_json(told)
    else:
        typer.echo(f"Removed {key}.")


def _made_key(file: Path) -> str:
    from accord.contracts.session_proof import session_key
    from accord.kernel.signing import SigningKey

    return session_key(SigningKey.create(file))


def _show_plan(plan: dict[str, Any]) -> None:
    typer.echo(f"{plan['id']}: {plan['classification']} for {printable(plan['deployment'])}")
    typer.echo(f"  {plan['state']}, contract {printable(plan['contract_id'])} {plan['digest']}")
    for part, value in plan["delta"].items():
        for line in _lines(value):
            typer.echo(f"  {printable(part)}: {printable(line)}")


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
