"""What the demo tells, as values: read from data files, and the same for everybody.

Reads package data and nothing else.
"""

import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

STATION: Final = "station"
"""By which name the story calls the station itself."""


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Neighbour(_Told):
    """Somebody with a device of their own."""

    name: str
    called: str
    level: str = "member"
    joins: bool = True


class Post(_Told):
    """Something on the market; it may have been ended since."""

    by: str
    category: str
    title: str
    body: str
    tags: tuple[str, ...]
    seconds: int = 14 * 86_400
    ends: str = ""


class Document(_Told):
    """A text of ours, and the licence under which everybody may read it."""

    file: str
    title: str
    licence: str

    @property
    def path(self) -> Path:
        """Where the text lies."""
        return _DATA / "documents" / self.file


class Message(_Told):
    """Sealed words from one member to another."""

    by: str
    to: str
    text: str


class Visit(_Told):
    """What somebody says in a space of the web chat, and whether an agent may hear them there."""

    visitor: str
    space: str
    said: tuple[str, ...]
    linked: bool = True


class Loan(_Told):
    """A tool that a service lends, and another one reminds of."""

    tool: str
    neighbour: str
    days: int


class Story(_Told):
    """The whole of it."""

    station: str
    community: str
    corpus: str
    neighbours: tuple[Neighbour, ...]
    posts: tuple[Post, ...]
    documents: tuple[Document, ...]
    messages: tuple[Message, ...]
    visits: tuple[Visit, ...]
    loans: tuple[Loan, ...]


_DATA: Final = Path(str(files("accord.demo"))) / "data"


@cache
def story() -> Story:
    """The story of this release."""
    return Story.model_validate(tomllib.loads((_DATA / "story.toml").read_text("utf-8")))
