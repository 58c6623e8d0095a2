"""`accord rpc allow | call | run | signal | cancel`: use a service from the shell."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import report
from accord.cli.authority_reach import ask
from accord.cli.contract_reading import STDIN, printable, read_contract
from accord.cli.fabric_session import (
    PATIENCE,
    SHELL,
    As,
    AuthorityUrl,
    ContractFile,
    KeyFile,
    Shell,
    Wait,
    kept_key,
    shell_key,
)
from accord.cli.options import Config, Home, Json

if TYPE_CHECKING:
    from accord.fabric import FabricError, Session
    from accord.fabric.operations import Run

app = typer.Typer(
    no_args_is_help=True,
    epilog='Example: accord rpc call library.json Library.Find \'{"book": "Emma"}\'',
)

Name = Annotated[str, typer.Argument(help="The surface, such as Library.Find.")]
Payload = Annotated[str, typer.Argument(help="JSON, @FILE, or - for stdin.")]
Within = Annotated[float, typer.Option(min=0.1, max=600, help="How many seconds it may take.")]


@app.command(epilog="Example: accord rpc allow")
def allow(home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Let the shell of this home call: once, by whoever operates its authority.

    Makes a key that only you can read, and a deployment `shell` in mutable-dev whose instance it
    is. From then on every command acts under a contract that uses the one that it names, and the
    history tells of each.
    """
    from accord.contracts.session_proof import session_key
    from accord.station.settings import load

    deployment = ask(home, config, "deploy", deployment=SHELL, compatibility="mutable-dev")
    key = session_key(kept_key(shell_key(load(home, config))))
    known = ask(home, config, "instances/list", deployment=SHELL)["instances"]
    if key not in {each["key"] for each in known}:
        ask(home, config, "instances/add", deployment=SHELL, key=key, name=f"shell-{key[:8]}")
    if as_json:
        report.show_json({"deployment": deployment["deployment"], "sessionKey": key})
    else:
        typer.echo(f"The shell may call, as an instance of {SHELL}: {key}")


@app.command(epilog='Example: accord rpc call library.json Library.Find \'{"book": "Emma"}\'')
def call(
    contract: ContractFile,
    name: Name,
    payload: Payload = "{}",
    within: Within = 30.0,
    authority: AuthorityUrl = None,
    key_file: KeyFile = None,
    acting_as: As = None,
    wait: Wait = PATIENCE,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Call an RPC and print its answer.

    An error is told by its type; with --json it is printed as {"error": {...}}. Exit code 1 when
    the call is refused.
    """
    asked, target = _read(payload), read_contract(contract)
    shell = Shell(home, config, authority, key_file, acting_as, wait)

    async def work(session: "Session") -> Any:
        return await session.client(target).call(name, asked, within=within)

    with typed(as_json):
        demand(target, "rpc", name)
        show(shell.run(target, work), as_json)


@app.command(epilog="Example: accord rpc run library.json Library.Stocktake '{}'")
def run(
    contract: ContractFile,
    name: Name,
    payload: Payload = "{}",
    detach: Annotated[
        bool, typer.Option("--detach", help="Print its id, and do not wait for its end.")
    ] = False,
    authority: AuthorityUrl = None,
    key_file: KeyFile = None,
    acting_as: As = None,
    wait: Wait = PATIENCE,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Start an operation, tell its progress on stderr, and print what it comes to."""
    asked, target = _read(payload), read_contract(contract)
    shell = Shell(home, config, authority, key_file, acting_as, wait)

    async def work(session: "Session") -> Any:
        started = await session.client(target).start(name, asked)
        if detach:
            return {"id": started.id}
        report.say(f"started {started.id}")
        return await _followed(started)

    with typed(as_json):
        demand(target, "operations", name)
        show(shell.run(target, work), as_json)


@app.command(epilog="Example: accord rpc signal library.json Library.Stocktake ID pause '{}'")
def signal(
    contract: ContractFile,
    name: Name,
    operation: Annotated[str, typer.Argument(help="The operation's id, as `run` tells it.")],
    signal_name: Annotated[str, typer.Argument(metavar="SIGNAL", help="The signal's name.")],
    payload: Payload = "{}",
    authority: AuthorityUrl = None,
    key_file: KeyFile = None,
    acting_as: As = None,
    wait: Wait = PATIENCE,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Send a signal to an operation that runs."""
    said, target = _read(payload), read_contract(contract)
    shell = Shell(home, config, authority, key_file, acting_as, wait)

    async def work(session: "Session") -> Any:
        number = await _run_of(session, target, name, operation).signal(signal_name, said)
        return {"id": operation, "signal": signal_name, "sequence": number}

    with typed(as_json):
        demand(target, "operations", name)
        show(shell.run(target, work), as_json)


@app.command(epilog="Example: accord rpc cancel press.json Press.Print ID")
def cancel(
    contract: ContractFile,
    name: Name,
    operation: Annotated[str, typer.Argument(help="The operation's id, as `run` tells it.")],
    authority: AuthorityUrl = None,
    key_file: KeyFile = None,
    acting_as: As = None,
    wait: Wait = PATIENCE,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Cancel an operation, where its contract allows that; an end that came before counts."""
    target = read_contract(contract)
    shell = Shell(home, config, authority, key_file, acting_as, wait)

    async def work(session: "Session") -> Any:
        ended = await _run_of(session, target, name, operation).cancel()
        return {"id": operation, "state": ended.state}

    with typed(as_json):
        demand(target, "operations", name)
        show(shell.run(target, work), as_json)


def _run_of(session: "Session", target: dict[str, Any], name: str, operation: str) -> "Run":
    from accord.fabric.operations import Operation, Run
    from accord.fabric.terms import Terms

    return Run(session.link, Operation.of(Terms(target), name), operation)


async def _followed(started: "Run") -> Any:
    """What an operation comes to; its progress is told on the way."""
    from accord.fabric import FabricError
    from accord.kernel import canonical

    told: Any = None
    async for snapshot in started.watch():
        if snapshot.progress is not None and snapshot.progress != told:
            told = snapshot.progress
            report.say(f"progress {printable(canonical.encode(told).decode())}")
        if snapshot.has_ended:
            if snapshot.error is not None:
                raise snapshot.error
            if snapshot.state != "completed":
                raise FabricError(f"the operation was {snapshot.state}")
            return snapshot.output
    raise FabricError("the operation is watched no longer")


@contextmanager
def typed(as_json: bool) -> Iterator[None]:
    """Tell an error of the fabric by its type, and leave with exit code 1."""
    from accord.fabric import FabricError

    try:
        yield
    except FabricError as error:
        if as_json:
            report.show_json({"error": _members(error)})
        for line in _lines(error):
            report.say(f"error: {printable(line)}")
        raise typer.Exit(report.FAILED) from error


def show(answer: Any, as_json: bool) -> None:
    """Print JSON: on one line for a program, laid out for a person."""
    if as_json:
        report.show_json(answer)
        return
    import json

    typer.echo(json.dumps(answer, ensure_ascii=sys.stdout.isatty(), indent=2))


def _members(error: "FabricError") -> dict[str, Any]:
    from accord.fabric import BootstrapError

    code = {"code": error.code} if isinstance(error, BootstrapError) else {}
    return {**error.members(), **code, **({"id": error.id} if error.id else {})}


def _lines(error: "FabricError") -> list[str]:
    from accord.fabric import ValidationError

    issues = error.issues if isinstance(error, ValidationError) else ()
    return [
        f"{error.type}: {error}",
        *(f"  {each['path'] or '(whole document)'}: {each['message']}" for each in issues),
    ]


def demand(target: dict[str, Any], section: str, name: str) -> None:
    """Go on only with a surface that a contract has.

    Raises:
        NotFoundError: It has none of this name.
    """
    from accord.fabric.terms import missing

    known = target.get(section, {})
    if name not in known:
        raise missing(target["id"], section, name, known)


def _read(payload: str) -> Any:
    from accord.fabric import FabricError
    from accord.kernel import canonical

    try:
        if payload == STDIN:
            data = sys.stdin.buffer.read(canonical.MAX_BYTES + 1)
        elif payload.startswith("@"):
            with Path(payload[1:]).open("rb") as file:
                data = file.read(canonical.MAX_BYTES + 1)
        else:
            data = payload.encode()
        return canonical.decode(data)
    except (OSError, UnicodeEncodeError) as error:
        raise FabricError(f"the payload cannot be read ({error})", mend="name another") from None
    except canonical.CanonicalError as error:
        raise FabricError(
            printable(f"the payload is no JSON: {error}"),
            mend='quote it for the shell, such as \'{"book": "Emma"}\'',
        ) from None
