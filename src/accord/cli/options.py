"""The options that several commands share, declared once. Nothing is read here."""

from pathlib import Path
from typing import Annotated

import typer

Home = Annotated[
    Path | None,
    typer.Option("--home", help="The station's folder (default: $ACCORD_HOME, else ~/.accord)."),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="The settings file (default: accord.toml in the home)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
