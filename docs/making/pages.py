"""The made pages: which there are, and what each is made by.

Owns the list. `rendered` gives every page as it should be, by its path below `docs`; writing them
is for `__main__`, comparing for the tests.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import Final

from docs.making import (
    commands,
    community,
    fabric,
    frames,
    imports,
    indexes,
    metrics,
    routes,
    rules,
    settings,
    tables,
    typescript,
)
from docs.making.markdown import join, table
from docs.making.notes import Notes, woven

from accord.cli import app

_MADE: Final = "<!-- Made by `make docs` from the code and docs/making/notes: edit those. -->"


@dataclass(frozen=True, slots=True)
class Page:
    """One page.

    Attributes:
        name: Its path below `docs`, without the suffix.
        title: Its heading.
        body: Makes what comes below the opening.
        about: What is on it, as a clause for the index of the reference.
        lead: What comes before the opening.
        is_whole: Whether the body is the page as it is, with heading and opening.
    """

    name: str
    title: str
    body: Callable[[], str]
    about: str = ""
    lead: str = ""
    is_whole: bool = False

    def text(self) -> str:
        """The whole page.

        Raises:
            MakingError: Something on it has no meaning, or a note belongs nowhere.
        """
        if self.is_whole:
            return self.body()
        told = woven(self.name, self.body(), Notes.of(self.name))
        return join([f"# {self.title}", _MADE, self.lead, told]) + "\n"


REFERENCE: Final = (
    Page(
        "reference/cli",
        "The command line",
        partial(commands.overview, app),
        "every command, and what exit codes mean",
    ),
    Page(
        "reference/settings",
        "Settings",
        settings.render,
        "every setting, its default and its variable",
    ),
    Page(
        "reference/metrics",
        "Metrics",
        metrics.reference_page,
        "every figure that a station shows to Prometheus",
        is_whole=True,
    ),
    Page("reference/http", "HTTP routes", routes.render, "every path that a station answers"),
    Page(
        "reference/fabric",
        "The client library",
        fabric.render,
        "every class and function of `accord.fabric`, and how contracts are written",
    ),
    Page(
        "reference/typescript",
        "The TypeScript client",
        typescript.render,
        "everything that the npm package `accord-fabric` exports",
    ),
    Page("reference/errors", "Error codes", rules.codes, "what each means, and its HTTP status"),
    Page("reference/events", "Events", community.events, "every type in a community's log"),
    Page(
        "reference/fold-rules",
        "Rules of the fold",
        community.fold,
        "why an event stands or does not",
    ),
    Page(
        "reference/capabilities",
        "Capabilities",
        lambda: join([community.checks(), community.capabilities()]),
        "what a node offers on the bus, and the checks of a call",
    ),
    Page(
        "reference/frames",
        "Frames of the relay",
        frames.render,
        "what travels between connector and gateway",
    ),
    Page(
        "reference/gate-rules",
        "Rules of the gate",
        rules.gate,
        "its layers, and every reason they give",
    ),
    Page(
        "reference/contract-rules",
        "Rules of contracts",
        rules.contracts,
        "validity, compatibility, what stands together, permissions",
    ),
    Page(
        "reference/imports",
        "Imported documents",
        imports.render,
        "documents of public services, and what each loses as a contract",
    ),
    Page(
        "reference/tables",
        "Tables and streams",
        tables.render,
        "what the pipeline reads and publishes",
    ),
)
"""Every page of the reference but its index and those of single nouns of the command line."""


@cache
def rendered() -> Mapping[str, str]:
    """Every made page as it should be, by its path below `docs`."""
    pages = (
        Page("guides/index", "Guides", indexes.guides),
        Page("decisions/README", "Decisions", indexes.decisions),
        Page("reference/index", "Reference", _reference_index),
        *REFERENCE,
        *_nouns(),
    )
    return {f"{page.name}.md": page.text() for page in pages}


def _reference_index() -> str:
    rows = [
        (f"[{page.title}]({page.name.removeprefix('reference/')}.md)", page.about)
        for page in REFERENCE
    ]
    return table(("page", "what is on it"), rows)


def _nouns() -> Iterator[Page]:
    for name, (about, body) in commands.nouns(app).items():
        title = "accord: the station" if name == commands.STATION else f"accord {name}"
        yield Page(f"reference/cli/{name}", title, partial(str, body), lead=about)
