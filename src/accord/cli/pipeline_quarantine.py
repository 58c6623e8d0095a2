"""`accord pipeline quarantine`: refused records, repairs, and their admission."""

import getpass
import json
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accord.cli import output
from accord.cli.arguments import printable
from accord.cli.output import App
from accord.cli.pipeline import Folder, LandingPlace, PipelineCli, locate

if TYPE_CHECKING:
    from accord.pipeline.rules.repairs import Operation
    from accord.pipeline.runs.quarantine import QuarantinedRecord

app = App(no_args_is_help=True, epilog="Example: accord pipeline quarantine list --rule schema")

Records = Annotated[
    list[str], typer.Argument(help="Digests of refused records; 8 characters are enough.")
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", help="/path=JSON: give a member a value; may be repeated."),
]
Cast = Annotated[
    list[str] | None,
    typer.Option("--cast", help="/path=TYPE: integer, number, string or boolean."),
]
Drop = Annotated[list[str] | None, typer.Option("--drop", help="/path: remove a member.")]


@dataclass(frozen=True)
class RepairCli(PipelineCli):
    """The context of a command that repairs; values are set first, then cast, then dropped."""

    folder: Folder = None
    to_set: Set = None
    to_cast: Cast = None
    to_drop: Drop = None

    def operations(self) -> "list[Operation]":
        """The operations in their order; raises `typer.BadParameter`."""
        from accord.pipeline.rules.repairs import Operation

        made = [Operation("set", path, _json(text)) for path, text in _pairs(self.to_set, "--set")]
        made += [Operation("cast", path, kind) for path, kind in _pairs(self.to_cast, "--cast")]
        return made + [Operation("drop", path) for path in self.to_drop or ()]


@dataclass(frozen=True)
class AdmitCli(RepairCli):
    """The context of `admit`."""

    folder: Folder = None
    to_set: Set = None
    to_cast: Cast = None
    to_drop: Drop = None
    landing: LandingPlace = None


def _pairs(given: list[str] | None, option: Literal["--set", "--cast"]) -> list[tuple[str, str]]:
    pairs = [each.partition("=") for each in given or ()]
    if wrong := [path for path, found, _ in pairs if not found]:
        raise typer.BadParameter(f"{option} {wrong[0]}: expected /path=value")
    return [(path, value) for path, _, value in pairs]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise typer.BadParameter(
            f'--set: {text[:80]!r} is not JSON; a text is written "so"'
        ) from None


@app.command("list", epilog="Example: accord pipeline quarantine list --stream relay.deliveries")
def list_refused(
    cli: PipelineCli,
    stream: Annotated[str | None, typer.Option(help="Only records of this stream.")] = None,
    rule: Annotated[str | None, typer.Option(help="Only records that break this rule.")] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="At most so many.")] = 100,
) -> None:
    """List the refused records, newest first, and which were admitted again."""
    from accord.pipeline.runs import quarantine

    layout = cli.layout()
    found = quarantine.refused_records(layout, stream=stream, rule=rule, limit=limit)
    again = {each["record"] for each in quarantine.trail(layout)}
    told = [{**_told(each), "admitted_again": each.digest in again} for each in found]
    rows = [
        [
            each.digest[:12],
            each.stream,
            printable(each.id),
            each.rule,
            printable(each.reason[:80]),
            "yes" if each.digest in again else "",
        ]
        for each in found
    ]
    columns = ["record", "stream", "id", "rule", "reason", "admitted again"]
    cli.emit({"records": told}, output.Table(columns, rows))


@app.command(epilog="Example: accord pipeline quarantine show 3f29c0d1")
def show(
    cli: PipelineCli,
    record: Annotated[str, typer.Argument(help="Its digest; 8 characters are enough.")],
) -> None:
    """Show a refused record with its body, why it was refused, and the trail of its repairs."""
    from accord.pipeline.runs import quarantine

    layout = cli.layout()
    (found,), _ = quarantine.find_records(layout, [record])
    done = [each for each in quarantine.trail(layout) if each["record"] == found.digest]
    lines: list[output.Line] = [
        ("record", found.digest),
        ("stream", found.stream),
        ("id", printable(found.id)),
        ("rule", found.rule),
        ("reason", printable(found.reason)),
        ("segment", found.segment),
        ("body", printable(found.body or "none")),
    ]
    lines += [
        f"Admitted again at {each['admitted_at']} by {printable(each['by'])}: "
        f"{printable(each['repair'])}, in {each['segment']}"
        for each in done
    ]
    cli.emit({**_told(found), "body": found.body, "trail": output.RawJson(done)}, lines)


@app.command(epilog="Example: accord pipeline quarantine repair 3f29c0d1 --cast /messages=integer")
def repair(cli: RepairCli, records: Records) -> None:
    """Show what the checks say of records after a repair; nothing is written.

    Values are set first, then cast, then members dropped. Exit code 1 when one is still refused.
    """
    from accord.pipeline.rules import repairs
    from accord.pipeline.runs import quarantine

    operations = cli.operations()
    found, manifests = quarantine.find_records(cli.layout(), records)
    done = [(each, repairs.repair(each.refused, operations, manifests)) for each in found]
    told = [
        {
            "record": each.digest,
            "stands": repaired.stands,
            "rule": repaired.verdict.rule,
            "reason": repaired.verdict.reason,
            "body": repaired.body,
        }
        for each, repaired in done
    ]
    rows = [
        [
            each.digest[:12],
            repaired.verdict.rule or "stands",
            printable(repaired.verdict.reason or ""),
            printable(repaired.body),
        ]
        for each, repaired in done
    ]
    cli.emit({"records": told}, output.Table(["record", "verdict", "reason", "body"], rows))
    if not all(repaired.stands for _, repaired in done):
        raise typer.Exit(output.FAILED)


@app.command(
    epilog="Example: accord pipeline quarantine admit 3f29c0d1 --cast /messages=integer --by ada"
)
def admit(
    cli: AdmitCli,
    records: Records,
    by: Annotated[str | None, typer.Option(help="Who decides (default: this user).")] = None,
    name: Annotated[str, typer.Option(help="What the repair is called in the trail.")] = "repair",
) -> None:
    """Repair records of one stream and land them as a new segment; the next run takes them.

    All must stand, else nothing lands. Signed events and manifests are admitted only as they are.
    """
    from accord.pipeline.runs import quarantine

    operations = cli.operations()
    layout, lands = locate(cli, cli.landing)
    found, manifests = quarantine.find_records(layout, records)
    done = quarantine.admit_repaired(
        layout,
        found,
        operations,
        manifests,
        by=by or getpass.getuser(),
        name=name,
        now_ms=int(time.time() * 1000),
        landing=lands,
    )
    cli.emit(
        {"segment": done.segment.name, "trail": output.RawJson(list(done.trail))},
        [
            f"{done.segment.rows} records landed in {done.segment.name}.",
            "Next: accord pipeline run",
        ],
    )


def _told(each: "QuarantinedRecord") -> dict[str, Any]:
    return {name: value for name, value in asdict(each).items() if name != "body"}
