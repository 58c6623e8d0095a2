"""`accord doctor`: look at this machine and say what to do."""

import typer

from accord.cli import report
from accord.cli.options import Config, Home, Json

EXAMPLE = "Example: accord doctor --json"


def doctor(home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Check this machine, the settings, the home, its keys and its stores; exit 1 if one fails."""
    from accord.station.conditions import Status
    from accord.station.doctor import examine

    checks = list(examine(home, config))
    failed = any(check.status is Status.FAIL for check in checks)
    if as_json:
        rows = [
            {
                "name": check.name,
                "status": check.status.value,
                "seen": check.seen,
                "advice": check.advice,
            }
            for check in checks
        ]
        report.show_json({"ok": not failed, "checks": rows})
    else:
        report.show_table(
            ["", "check", "seen"],
            [
                [
                    check.status.value,
                    check.name,
                    "\nto do: ".join(filter(None, (check.seen, check.advice))),
                ]
                for check in checks
            ],
        )
    raise typer.Exit(report.FAILED if failed else 0)
