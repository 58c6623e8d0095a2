"""The one setting of a pipeline's folder: the format of its tables, chosen when it is made."""

import json
from typing import Final

from accord.pipeline.errors import PipelineError
from accord.pipeline.layout import Layout

FORMATS: Final = ("parquet", "delta", "iceberg")
"""Parquet is what is tested; the others need their jars, and are unproven."""

DEFAULT: Final = "parquet"


def initialise(layout: Layout, chosen: str = DEFAULT) -> bool:
    """Make a folder with a table format; false where it has that format already.

    Raises:
        PipelineError: It has another, or cannot be made.
    """
    if chosen not in FORMATS:
        raise PipelineError(
            f"there is no table format {chosen!r}", mend=f"choose one of {', '.join(FORMATS)}"
        )
    if layout.settings.exists():
        if (found := table_format(layout)) != chosen:
            raise PipelineError(
                f"the tables are in the format {found}",
                where=str(layout.root),
                mend="name another folder; tables cannot change their format",
            )
        return False
    try:
        for place in (layout.landing, layout.runs):
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
        layout.settings.write_text(json.dumps({"form": 1, "table_format": chosen}) + "\n")
    except OSError as error:
        raise PipelineError(
            f"the pipeline's folder cannot be made: {error.strerror}", where=str(layout.root)
        ) from error
    return True


def table_format(layout: Layout) -> str:
    """The format of the folder's tables.

    Raises:
        PipelineError: The file that says so is damaged.
    """
    try:
        told = json.loads(layout.settings.read_bytes())
        found = told["table_format"]
    except FileNotFoundError:
        return DEFAULT
    except (OSError, ValueError, KeyError, TypeError):
        found = None
    if found not in FORMATS:
        raise PipelineError(
            "the file does not say a table format",
            where=str(layout.settings),
            mend=f'write {{"form": 1, "table_format": "{DEFAULT}"}} into it',
        )
    return str(found)
