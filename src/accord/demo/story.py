"""The content of the demo, read from data files."""

import tomllib
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

STATION: Final = "station"
"""The story's name for the station itself."""


class _StoryModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Neighbour(_StoryModel):
    """A person with a device."""

    name: str
    called: str
    level: str = "member"
    joins: bool = True


class StoryPost(_StoryModel):
    """A post on the market; `ends` gives the reason if it is ended."""

    by: str
    category: str
    title: str
    body: str
    tags: tuple[str, ...]
    seconds: int = 14 * 86_400
    ends: str = ""


class StoryDocument(_StoryModel):
    """A text of ours, and its licence."""

    file: str
    title: str
    licence: str

    @property
    def path(self) -> Path:
        """The file of the text."""
        return _DATA / "documents" / self.file


class SharedFile(StoryDocument):
    """A file that a neighbour shares with the whole community."""

    by: str


class StoryMessage(_StoryModel):
    """A sealed message from one member to another."""

    by: str
    to: str
    text: str


class StoryVisit(_StoryModel):
    """A visitor's messages in a space of the web chat, and whether an agent is linked there."""

    visitor: str
    space: str
    said: tuple[str, ...]
    linked: bool = True


class StoryLoan(_StoryModel):
    """A tool that one service lends, and another reminds of."""

    tool: str
    neighbour: str
    days: int


class Story(_StoryModel):
    """The whole content."""

    station: str
    community: str
    corpus: str
    neighbours: tuple[Neighbour, ...]
    posts: tuple[StoryPost, ...]
    documents: tuple[StoryDocument, ...]
    files: tuple[SharedFile, ...]
    messages: tuple[StoryMessage, ...]
    visits: tuple[StoryVisit, ...]
    loans: tuple[StoryLoan, ...]


_DATA: Final = Path(str(files("accord.demo"))) / "data"


@cache
def story() -> Story:
    """Return the content of this release."""
    return Story.model_validate(tomllib.loads((_DATA / "story.toml").read_text("utf-8")))
