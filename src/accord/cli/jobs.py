"""`accord jobs list | retry | dismiss`: everybody's jobs, by the contract `trellis.jobs@v1`."""

from typing import TYPE_CHECKING, Annotated, Any

import typer

from accord.cli import report
from accord.cli.community_node import show_lines
from accord.cli.contract_reading import printable
from accord.cli.fabric_session import PATIENCE, As, AuthorityUrl, KeyFile, Shell, Wait
from accord.cli.options import Config, Home, Json
from accord.cli.rpc import typed

if TYPE_CHECKING:
    from accord.fabric import Session

app = typer.Typer(no_args_is_help=True, epilog="Example: accord jobs list --state dead")

JobId = Annotated[str, typer.Argument(metavar="JOB", help="The job's id, as `list` shows it.")]
_CONTRACT = "trellis.jobs@v1"


@app.command("list", epilog="Example: accord jobs list --service postoffice --state dead")
def list_jobs(
    service: Annotated[str | None, typer.Option(help="Only those of a deployment.")] = None,
    queue: Annotated[str | None, typer.Option(help="Only those of a queue.")] = None,
    state: Annotated[
        list[str] | None, typer.Option(help="Only those that stand so, such as dead.")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=500, help="The latest so many.")] = 100,
    authority: AuthorityUrl = None,
    key_file: KeyFile = None,
    acting_as: As = None,
    wait: Wait = PATIENCE,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """List jobs, the latest first."""
    asked: dict[str, Any] = {"service": service, "jobType": queue, "state": state, "limit": limit}
    shell = Shell(home, config, authority, key_file, acting_as, wait)
    with typed(as_json):
        told = _ask(shell, "Jobs.List", {name: it for name, it in asked.items() if it is not None})
    if as_json:
        report.show_json(told)
        return
    show_lines(
        [
            (
                each["jobId"],
                printable(each["service"]),
                printable(each["jobType"]),
                printable(each["state"]),
                f"{each['tries']} of {each.get('maxTries') or '-'}",
                printable(_why(each.get("error"))),
            )
            for each in told["jobs"]
        ]
    )


@app.command(epilog="Example: accord jobs retry 01JQ8Z6S3N4TP7XGW5KE2RHV9B")
def retry(
    job: JobId,
    authority: AuthorityUrl = None,
    key_file: KeyFile = None,
    acting_as: As = None,
    wait: Wait = PATIENCE,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Have a job that failed, expired or was dismissed done again."""
    shell = Shell(home, config, authority, key_file, acting_as, wait)
    _change(shell, "Jobs.Retry", job, as_json)


@app.command(epilog="Example: accord jobs dismiss 01JQ8Z6S3N4TP7XGW5KE2RHV9B")
def dismiss(
    job: JobId,
    authority: AuthorityUrl = None,
    key_file: KeyFile = None,
    acting_as: As = None,
    wait: Wait = PATIENCE,
    home: Home = None,
    config: Config = None,
    as_json: Json = False,
) -> None:
    """Let a job that failed for good rest."""
    shell = Shell(home, config, authority, key_file, acting_as, wait)
    _change(shell, "Jobs.Dismiss", job, as_json)


def _change(shell: Shell, name: str, job: str, as_json: bool) -> None:
    with typed(as_json):
        told = _ask(shell, name, {"jobId": job})
    if as_json:
        report.show_json(told)
    else:
        typer.echo(f"{told['job']['jobId']} is {printable(told['job']['state'])}.")


def _ask(shell: Shell, name: str, payload: dict[str, Any]) -> Any:
    from accord.authority.contracts import builtins

    target = builtins()[_CONTRACT]

    async def work(session: "Session") -> Any:
        return await session.client(target).call(name, payload)

    return shell.run(target, work)


def _why(error: Any) -> str:
    if isinstance(error, dict):
        return str(error.get("message", ""))
    return "" if error is None else str(error)
