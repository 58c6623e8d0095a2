"""The page of the pipeline's tables: streams, layers, and every gold table with what it is made of.

Spark is not started: what a table means stands at its function, and its columns are kept.
"""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Final

from docs.making import columns as gold_columns
from docs.making import rules
from docs.making.errors import MakingError
from docs.making.markdown import code, join, meaning, table
from docs.making.schemas import members_table

from accord.pipeline import catalog
from accord.pipeline.rules import COMMUNITY_EVENTS, STREAMS
from accord.pipeline.tables import BRONZE, CHECKED, GOLD, SILVER, GoldTable

_COMMA: Final = re.compile(r", (?![^<]*>)")
_LAYERS: Final = (
    ("bronze", BRONZE, "Every landed record, as it landed."),
    ("checked", CHECKED, "Every record with the verdict on it."),
    ("silver", SILVER, "The records that stand, each once."),
    ("quarantine", CHECKED, "The records that do not stand, with the rule they break."),
)


def render() -> str:
    """The page."""
    layers = [(code(name), about) for name, _, about in _LAYERS]
    return join(
        [
            "## Layers",
            table(("layer", "holds"), layers),
            table(("column", "type", "in"), _layered()),
            "## Checks",
            rules.checks(),
            "## Gold",
            *(_gold(each) for each in GOLD),
            "## Streams",
            *(_stream(each) for each in STREAMS),
        ]
    )


def _layered() -> Iterator[tuple[str, str, str]]:
    for column in _COMMA.split(CHECKED):
        name, _, kind = column.partition(" ")
        having = [layer for layer, made, _ in _LAYERS if column in _COMMA.split(made)]
        where = "every layer" if len(having) == len(_LAYERS) else ", ".join(map(code, having))
        yield code(name), code(kind), where


def _gold(made: GoldTable) -> str:
    paragraphs = inspect.cleandoc(made.build.__doc__ or "").split("\n\n")
    about = [meaning(each, f"the table {made.name}") for each in paragraphs]
    needs = STREAMS if set(STREAMS) <= set(made.needs) else ()
    others = [code(each) for each in made.needs if each not in needs]
    listed = ", ".join((["every stream"] if needs else []) + others)
    contract = catalog.contracts()[made.name]
    facts = f"Made from {listed}. Owner: {contract.owner}."
    if contract.key:
        facts += f" Key: {', '.join(map(code, contract.key))}."
    rows = [
        (code(name), code(kind), contract.meaning_of(name))
        for name, kind in _columns(made.name).items()
    ]
    expected = [f"- {each.sentence} ({each.act})" for each in contract.expectations]
    told = ["Expected before a run publishes:\n\n" + "\n".join(expected)] if expected else []
    shown = table(("column", "type", "meaning"), rows)
    return join([f"### {made.name}", *about, facts, shown, *told])


def _columns(name: str) -> Mapping[str, str]:
    found = gold_columns.kept().get(name)
    if found is None:
        raise MakingError(
            "its columns are not known",
            where=f"the table {name}",
            mend="run `python -m docs.making --columns`, which asks Spark",
        )
    return found


def _stream(name: str) -> str:
    if name == COMMUNITY_EVENTS:
        return f"### {name}\n\nThe signed events of every log; see [events](events.md)."
    schema = json.loads(files("accord.pipeline").joinpath(f"data/streams/{name}.json").read_bytes())
    about = meaning(schema.get("description"), f"the stream {name}")
    return join([f"### {name}", about, members_table(schema)])
