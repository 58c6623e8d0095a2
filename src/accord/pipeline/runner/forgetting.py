"""Forgetting layers, so that the next run makes them anew from what was admitted.

A layer goes together with its checkpoint and with everything made from it. What is to go is written
down first: a run that finds the note finishes the work, so that no half is left.
"""

import json
import shutil

from accord.pipeline.layout import LAYERS, Layout

_NOTE = "forgetting.json"


def forget(layout: Layout, layer: str) -> tuple[str, ...]:
    """Remove a layer and all that follow it, and return their names."""
    gone = LAYERS[LAYERS.index(layer) :]
    layout.runs.mkdir(parents=True, exist_ok=True)
    (layout.runs / _NOTE).write_text(json.dumps(gone))
    finish(layout)
    return gone


def finish(layout: Layout) -> None:
    """Finish what was begun, if anything was."""
    note = layout.runs / _NOTE
    try:
        gone = json.loads(note.read_bytes())
    except FileNotFoundError:
        return
    except ValueError:
        gone = []  # killed while the note was written: nothing had been removed
    for layer in LAYERS:
        if layer in gone:
            for place in (layout.table(layer), layout.checkpoint(layer)):
                shutil.rmtree(place, ignore_errors=not place.exists())
    note.unlink()
