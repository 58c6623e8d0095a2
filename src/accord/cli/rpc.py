"""Services from the shell: `accord rpc`, `accord events` and `accord jobs`."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import output
from accord.cli.arguments import STDIN, printable, read_contract
from accord.cli.output import App, Cli
from accord.cli.planes import ask_authority
from accord.cli.shell import (
    EVERY_CONTRACT,
    SHELL,
    ContractFile,
    ShellCli,
    fabric_errors,
    load_or_create_key,
    require_surface,
    shell_key,
    stop_event,
    wait_first,
)

if TYPE_CHECKING:
    from accord.fabric import Received, Session
    from accord.fabric.operations import Run


app = App(
    no_args_is_help=True,
    epilog='Example: accord rpc call library.json Library.Find \'{"book": "Emma"}\'',
)

_CHUNK_BYTES = 1 << 18

Name = Annotated[str, typer.Argument(help="The surface, such as Library.Find.")]
Payload = Annotated[str, typer.Argument(help="JSON, @FILE, or - for stdin.")]
Within = Annotated[float, typer.Option(min=0.1, max=600, help="How many seconds it may take.")]


@app.command(epilog="Example: accord rpc allow --contract library@v1")
def allow(
    cli: Cli,
    contract: Annotated[
        list[str] | None,
        typer.Option(help="Only the contract of this id; may be given several times."),
    ] = None,
) -> None:
    """Allow the shell of this home to call services; the authority's operator does this once.

    Creates a key that only you can read, and a deployment `shell` whose instance it is. The
    deployment is granted calls of every contract, or of those that are named, in place of what it
    was granted before; it may offer nothing and hold no resources. Every command acts under a
    contract that uses the one that it names, and the history tells of each.
    """
    from accord.contracts.session_proof import session_key

    deployment = ask_authority(cli, "deploy", deployment=SHELL)
    calls = sorted(set(contract or (EVERY_CONTRACT,)))
    ask_authority(cli, "deployments/set", deployment=SHELL, calls=calls)
    key = session_key(load_or_create_key(shell_key(cli.settings())))
    known = ask_authority(cli, "instances/list", deployment=SHELL)["instances"]
    if key not in {each["key"] for each in known}:
        ask_authority(cli, "instances/add", deployment=SHELL, key=key, name=f"shell-{key[:8]}")
    what = "every contract" if calls == [EVERY_CONTRACT] else printable(", ".join(calls))
    cli.emit(
        {"deployment": deployment["deployment"], "session_key": key, "calls": calls},
        f"The shell may call {what}, as an instance of {SHELL}: {key}",
    )


@app.command(epilog="Example: accord rpc deny")
def deny(cli: Cli) -> None:
    """Revoke what `accord rpc allow` granted; the key stays, and may do nothing."""
    ask_authority(cli, "deployments/set", deployment=SHELL, calls=[])
    told = ask_authority(cli, "deployments/narrow", deployment=SHELL, everything=True)
    cli.emit(told, "The shell may call nothing any more.")


@app.command(epilog='Example: accord rpc call library.json Library.Find \'{"book": "Emma"}\'')
def call(
    cli: ShellCli,
    contract: ContractFile,
    name: Name,
    payload: Payload = "{}",
    within: Within = 30.0,
) -> None:
    """Call an RPC and print its answer.

    An error is shown with its type; with --json it is printed as {"error": {...}}. Exit code 1 when
    the call is refused.
    """
    asked, target = _read_payload(payload), read_contract(contract)

    async def work(session: "Session") -> Any:
        return await session.client(target).call(name, asked, within=within)

    _use(cli, target, "rpc", name, work)


@app.command(epilog="Example: accord rpc run library.json Library.Stocktake '{}'")
def run(
    cli: ShellCli,
    contract: ContractFile,
    name: Name,
    payload: Payload = "{}",
    detach: Annotated[
        bool, typer.Option("--detach", help="Print its id, and do not wait for its end.")
    ] = False,
    upload: Annotated[
        Path | None,
        typer.Option(exists=True, dir_okay=False, help="The file that the operation expects."),
    ] = None,
) -> None:
    """Start an operation, show its progress on stderr, and print its result."""
    asked, target = _read_payload(payload), read_contract(contract)

    async def work(session: "Session") -> Any:
        from accord.fabric.transfer import upload as send

        started = await session.client(target).start(name, asked)
        if upload is not None:
            await send(session.link, started.transfer, _chunks(upload))
        elif started.transfer is not None:
            output.say("the operation expects a file: name it with --upload")
        if detach:
            return {"id": started.id}
        output.say(f"started {started.id}")
        return await _follow(started)

    _use(cli, target, "operations", name, work)


async def _chunks(file: Path) -> "AsyncIterator[bytes]":
    with file.open("rb") as opened:
        while chunk := opened.read(_CHUNK_BYTES):
            yield chunk


@app.command(epilog="Example: accord rpc signal library.json Library.Stocktake ID pause '{}'")
def signal(
    cli: ShellCli,
    contract: ContractFile,
    name: Name,
    operation: Annotated[str, typer.Argument(help="The operation's id, as `run` prints it.")],
    signal_name: Annotated[str, typer.Argument(metavar="SIGNAL", help="The signal's name.")],
    payload: Payload = "{}",
) -> None:
    """Send a signal to an operation that runs."""
    said, target = _read_payload(payload), read_contract(contract)

    async def work(session: "Session") -> Any:
        number = await _run_of(session, target, name, operation).signal(signal_name, said)
        return {"id": operation, "signal": signal_name, "sequence": number}

    _use(cli, target, "operations", name, work)


@app.command(epilog="Example: accord rpc cancel press.json Press.Print ID")
def cancel(
    cli: ShellCli,
    contract: ContractFile,
    name: Name,
    operation: Annotated[str, typer.Argument(help="The operation's id, as `run` prints it.")],
) -> None:
    """Cancel an operation, where its contract allows that, unless it has ended already."""
    target = read_contract(contract)

    async def work(session: "Session") -> Any:
        ended = await _run_of(session, target, name, operation).cancel()
        return {"id": operation, "state": ended.state}

    _use(cli, target, "operations", name, work)


def _run_of(session: "Session", target: dict[str, Any], name: str, operation: str) -> "Run":
    from accord.fabric.operations import Operation, Run
    from accord.fabric.rules.terms import Terms

    return Run(session.link, Operation.of(Terms(target), name), operation)


async def _follow(started: "Run") -> Any:
    """What an operation comes to; its progress is told on the way."""
    from accord.fabric import FabricError
    from accord.kernel import canonical

    told: Any = None
    async for snapshot in started.watch():
        if snapshot.progress is not None and snapshot.progress != told:
            told = snapshot.progress
            output.say(f"progress {printable(canonical.encode(told).decode())}")
        if snapshot.has_ended:
            if snapshot.error is not None:
                raise snapshot.error
            if snapshot.state != "completed":
                raise FabricError(f"the operation was {snapshot.state}")
            return snapshot.output
    raise FabricError("the operation is no longer observed")


def _use(
    cli: ShellCli,
    target: dict[str, Any],
    section: str,
    name: str,
    work: "Callable[[Session], Awaitable[Any]]",
) -> None:
    """Use a surface in a session, and print the answer: on one line for a program."""
    import json

    with fabric_errors(cli):
        require_surface(target, section, name)
        answer = cli.run(target, work)
        text = json.dumps(answer, ensure_ascii=sys.stdout.isatty(), indent=2)
        cli.emit(output.RawJson(answer), text)


def _read_payload(payload: str) -> Any:
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


events_app = App(
    no_args_is_help=True, epilog="Example: accord events tail library.json Library.Lent"
)


@events_app.command(
    epilog="Example: accord events tail library.json Library.Lent --where /reader=ann"
)
def tail(
    cli: ShellCli,
    contract: ContractFile,
    name: Annotated[str, typer.Argument(help="The event, such as Library.Lent.")],
    where: Annotated[
        list[str] | None,
        typer.Option(help="Only events with this parameter of the subject, as POINTER=VALUE."),
    ] = None,
    count: Annotated[
        int | None, typer.Option(min=1, help="Exit after this many events (default: never).")
    ] = None,
) -> None:
    """Print every event from now on, until SIGTERM or Ctrl-C.

    It receives only what is published while it listens; a service that must not miss any declares a
    consumer group.
    """
    target, chosen = read_contract(contract), _parse_wheres(where or [])

    async def work(session: "Session") -> None:
        stop = stop_event()
        async with session.client(target).listen(name, where=chosen) as heard:
            output.say(f"listening for {name} of {target['id']}")
            await wait_first(_show_events(cli, heard, count), stop.wait(), session.ended())

    with fabric_errors(cli):
        require_surface(target, "events", name)
        cli.run(target, work)


async def _show_events(cli: ShellCli, heard: "AsyncIterator[Received]", count: int | None) -> None:
    left = count
    async for event in heard:
        cli.emit(
            {"id": event.id, "time": event.time, "payload": output.RawJson(event.payload)},
            _event_lines(event),
        )
        if left is not None:
            left -= 1
            if left == 0:
                return


def _event_lines(event: "Received") -> Iterator[str]:
    from accord.kernel import canonical

    yield f"{printable(event.time)}  {printable(canonical.encode(event.payload).decode())}"


def _parse_wheres(given: list[str]) -> dict[str, str]:
    pairs = [each.partition("=") for each in given]
    if not all(pointer.startswith("/") and sign for pointer, sign, _ in pairs):
        raise typer.BadParameter(
            "expected POINTER=VALUE, such as /reader=ann", param_hint="--where"
        )
    return {pointer: value for pointer, _, value in pairs}


jobs_app = App(no_args_is_help=True, epilog="Example: accord jobs list --state dead")

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, as `list` shows it.")]
_JOBS_CONTRACT = "trellis.jobs@v1"


@jobs_app.command("list", epilog="Example: accord jobs list --service postoffice --state dead")
def list_jobs(
    cli: ShellCli,
    service: Annotated[str | None, typer.Option(help="Only those of a deployment.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only those of a queue.")] = None,
    state: Annotated[
        list[str] | None, typer.Option(help="Only jobs in this state, such as dead.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="How many of the latest.")] = 100,
) -> None:
    """List jobs, the latest first."""
    asked: dict[str, Any] = {"service": service, "jobType": queue, "state": state, "limit": limit}
    with fabric_errors(cli):
        told = _ask_jobs(
            cli, "Jobs.List", {name: it for name, it in asked.items() if it is not None}
        )
    cli.emit(
        {**told, "jobs": [_job_json(each) for each in told["jobs"]]},
        (
            (
                each["jobId"],
                printable(each["service"]),
                printable(each["jobType"]),
                printable(each["state"]),
                f"{each['tries']} of {each.get('maxTries') or '-'}",
                printable(_failure(each.get("error"))),
            )
            for each in told["jobs"]
        ),
    )


@jobs_app.command(epilog="Example: accord jobs retry 01JQ8Z6S3N4TP7XGW5KE2RHV9B")
def retry(cli: ShellCli, job: JobId) -> None:
    """Run a job again that failed, expired or was dismissed."""
    _change_job(cli, "Jobs.Retry", job)


@jobs_app.command(epilog="Example: accord jobs dismiss 01JQ8Z6S3N4TP7XGW5KE2RHV9B")
def dismiss(cli: ShellCli, job: JobId) -> None:
    """Dismiss a job that failed permanently."""
    _change_job(cli, "Jobs.Dismiss", job)


def _change_job(cli: ShellCli, name: str, job: str) -> None:
    with fabric_errors(cli):
        told = _ask_jobs(cli, name, {"jobId": job})
    cli.emit(
        {**told, "job": _job_json(told["job"])},
        f"{told['job']['jobId']} is {printable(told['job']['state'])}.",
    )


def _ask_jobs(cli: ShellCli, name: str, payload: dict[str, Any]) -> Any:
    from accord.authority.contracts import builtins

    target = builtins()[_JOBS_CONTRACT]

    async def work(session: "Session") -> Any:
        return await session.client(target).call(name, payload)

    return cli.run(target, work)


def _job_json(job: dict[str, Any]) -> dict[str, Any]:
    """A job for a program; what its service wrote stays as it is."""
    written = ("payload", "result", "error", "progress", "context")
    return {name: output.RawJson(each) if name in written else each for name, each in job.items()}


def _failure(error: Any) -> str:
    if isinstance(error, dict):
        return str(error.get("message", ""))
    return "" if error is None else str(error)
