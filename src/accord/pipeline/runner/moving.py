"""A pipeline's folder that was moved or copied: its logs are told where it lies now.

Spark names every file by its whole path, in the log of each layer's sink and in that of each
query's source; nothing else in the folder knows where it is. A run that finds the folder elsewhere
than the last one left it puts the new place before each of those names, and goes on where the
last one ended. Never touches a record. A move that is cut short is finished by the next run.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import quote

from accord.kernel.files import sync_folder
from accord.pipeline.layout import LAYERS, Layout

# The longest beginning counts: a folder above ours may be called `tables`, too.
_NAMED: Final = re.compile(
    rf'("path":"file:(?://)?)/[^"\n]*(/(?:admitted|tables/(?:{"|".join(LAYERS)}))/[^"\n]*")'
)
# What Java leaves as it is in a path; it leaves letters beyond ASCII, too.
_PLAIN: Final = "/:@&=+$,;_-!.~'()*"


def has_moved(layout: Layout) -> bool:
    """Whether the folder lies elsewhere than its logs say, or nobody noted where it lay."""
    try:
        return _note(layout).read_text("utf-8") != _place(layout)
    except FileNotFoundError:
        return any(_logs(layout))


def settle(layout: Layout) -> None:
    """Let the logs name everything where it lies now; the caller holds the folder."""
    if has_moved(layout):
        for log in _logs(layout):
            _rename(log, _encoded(_place(layout)))
    layout.runs.mkdir(parents=True, exist_ok=True)
    _replace(_note(layout), _place(layout))


def _logs(layout: Layout) -> Iterator[Path]:
    for layer in LAYERS:
        folders = [layout.table(layer) / "_spark_metadata"]
        folders += (layout.checkpoint(layer) / "sources").glob("*/")
        for folder in folders:
            yield from (each for each in folder.glob("[0-9]*") if each.is_file())


def _rename(log: Path, place: str) -> None:
    told = log.read_text("utf-8")
    renamed = _NAMED.sub(lambda named: f"{named[1]}{place}{named[2]}", told)
    if renamed != told:
        # The checksum beside it is of the old words; a file that has none is taken as it is.
        log.with_name(f".{log.name}.crc").unlink(missing_ok=True)
        _replace(log, renamed)


def _replace(file: Path, text: str) -> None:
    draft = file.with_name(f".{file.name}.draft")
    with draft.open("w", encoding="utf-8", newline="") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())
    draft.replace(file)
    sync_folder(file.parent)


def _note(layout: Layout) -> Path:
    return layout.runs / "place"


def _place(layout: Layout) -> str:
    return str(layout.root.absolute())


def _encoded(place: str) -> str:
    return "".join(each if ord(each) > 127 else quote(each, safe=_PLAIN) for each in place)
