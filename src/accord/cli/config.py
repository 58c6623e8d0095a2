"""`accord config`: check and show the settings. Secrets are never shown."""

import json

import typer

from accord.cli import report
from accord.cli.options import Config, Home, Json

app = typer.Typer(no_args_is_help=True, epilog="Example: accord config check --home ./station")


@app.command(epilog="Example: accord config check --home ./station")
def check(home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Read the settings and say what is wrong with them; exit 2 if something is."""
    from accord.station.errors import SettingsError
    from accord.station.settings import load

    try:
        settings = load(home, config)
    except SettingsError as error:
        if not as_json:
            raise
        findings = [
            {"where": finding.where, "what": finding.what, "mend": finding.mend}
            for finding in (error, *error.also)
        ]
        report.show_json({"ok": False, "findings": findings})
        raise typer.Exit(report.MISUSED) from None
    if as_json:
        report.show_json({"ok": True, "home": str(settings.home), "findings": []})
    else:
        typer.echo(f"The settings for {settings.home} are fine.")


@app.command(epilog="Example: accord config show > accord.toml")
def show(home: Home = None, config: Config = None, as_json: Json = False) -> None:
    """Print every setting as it stands, as TOML, with secrets hidden."""
    from accord.station.settings import load

    settings = load(home, config).model_dump(mode="json")
    if as_json:
        report.show_json(settings)
        return
    typer.echo(f"# The settings of {settings.pop('home')}")
    for section, values in settings.items():
        typer.echo(f"\n[{section}]")
        tables = {key: value for key, value in values.items() if _are_tables(value)}
        _show_values({key: value for key, value in values.items() if key not in tables})
        for key, rows in tables.items():
            for row in rows:
                typer.echo(f"\n[[{section}.{key}]]")
                _show_values(row)


def _are_tables(value: object) -> bool:
    return isinstance(value, list) and any(isinstance(each, dict) for each in value)


def _show_values(values: dict[str, object]) -> None:
    for key, value in values.items():
        # For texts, numbers and truth values JSON's form is TOML's, DEL excepted.
        text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        typer.echo(f"{key} = {text}")
