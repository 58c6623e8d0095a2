"""`accord pipeline generate`: a history with known faults, to try the pipeline on.

Only parses, reports and shows progress; what is made is in `accord.pipeline.generate`.
"""

from pathlib import Path
from typing import Annotated

import typer

from accord.cli import report
from accord.cli.options import Json


def generate(
    to: Annotated[
        Path, typer.Option(help="The pipeline's folder to land it in; it must hold no history yet.")
    ],
    events: Annotated[
        int, typer.Option(help="About how many events the community writes.")
    ] = 10_000,
    seed: Annotated[int, typer.Option(help="The same number gives the same history.")] = 1,
    faults: Annotated[bool, typer.Option(help="Whether faults are planted.")] = True,
    as_json: Json = False,
) -> None:
    """Make a history of every stream, signed, with planted faults and the truth about them.

    Segments appear under `landing/`, and `truth.json` beside it says what every stream must come
    to and names every planted record with the rule that it falls under.
    """
    from accord.pipeline.generate import TRUTH
    from accord.pipeline.generate import generate as make

    with report.progress("Writing history") as progress:
        truth = make(to, events=events, seed=seed, faults=None if faults else {}, progress=progress)
    told = truth.to_dict()
    if as_json:
        counts = [
            {name: fault[name] for name in ("kind", "stream", "fate", "rule", "count")}
            for fault in told["faults"]
        ]
        answer = {"folder": str(to), "truth": str(to / TRUTH), "streams": told["streams"]}
        report.show_json({**answer, "communities": told["communities"], "faults": counts})
        return
    columns = ("landed", "accepted", "quarantined", "duplicates")
    report.show_table(
        ("stream", *columns),
        (
            (stream, *(f"{terms[name]:,}" for name in columns))
            for stream, terms in told["streams"].items()
        ),
    )
    planted = sum(fault["count"] for fault in told["faults"])
    typer.echo(f"{planted:,} records are planted; {to / TRUTH} names each of them.")
    typer.echo("Now run the pipeline on that folder, and compare.")


def register(app: typer.Typer) -> None:
    """Add the verb to `accord pipeline`."""
    app.command(epilog="Example: accord pipeline generate --events 20000 --seed 7 --to ./trial")(
        generate
    )
