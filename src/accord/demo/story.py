"""The content of the demo, and the folder `demo` in a home: devices, and the steps that are done.

The content is read from data files. A home that people use is never touched.
"""

import json
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from accord.kernel.files import sync_folder
from accord.kernel.signing import SigningKey
from accord.station.errors import StationError
from accord.station.sections import StationSettings
from accord.station.settings import Settings

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


# Short, so that the pipeline's page has something to count soon.
_EXPORT_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class DemoHome:
    """The paths of the demo in a home."""

    path: Path

    @classmethod
    def of(cls, home: Path) -> "DemoHome":
        """Return those of a home."""
        return cls(home / "demo")

    def neighbour(self, name: str) -> Path:
        """Return the folder of a neighbour's device."""
        return self.path / "neighbours" / name

    def done(self) -> list[str]:
        """Return the steps that are done, in order."""
        try:
            return list(json.loads(self._note.read_bytes()))
        except FileNotFoundError:
            return []
        except ValueError:
            raise StationError(
                "the demo's note cannot be read",
                where=str(self._note),
                mend="start the demo in another home, such as --home ./demo",
            ) from None

    def note(self, step: str) -> None:
        """Record that a step is done."""
        draft = self._note.with_suffix(".draft")
        draft.write_text(json.dumps([*self.done(), step]))
        draft.replace(self._note)
        sync_folder(self.path)

    @property
    def _note(self) -> Path:
        return self.path / "done.json"


def load_or_create_key(file: Path) -> SigningKey:
    """Load a key, or create it for its owner only; raises `SigningError`."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return SigningKey.load(file) if file.exists() else SigningKey.create(file)


def prepare_demo(settings: Settings) -> Settings:
    """Return the settings of a demo in this home, or raise `StationError` if it is in use."""
    place = DemoHome.of(settings.home)
    if not place.path.exists() and any((settings.home / "communities").glob("*")):
        raise StationError(
            "this home has a community of its own, and the demo would write into it",
            where=str(settings.home),
            mend="give the demo a home of its own: accord up --demo --home ./demo",
        )
    pipeline = settings.pipeline
    if pipeline.export_seconds:
        seconds = min(pipeline.export_seconds, _EXPORT_SECONDS)
        pipeline = pipeline.model_copy(update={"export_seconds": seconds})
    station = settings.station
    if station.name == StationSettings().name:
        station = station.model_copy(update={"name": story().station})
    told = {"found": story().community, "join": ""}
    return settings.model_copy(
        update={
            "station": station,
            "community": settings.community.model_copy(update=told),
            "pipeline": pipeline,
            "bridge": settings.bridge.model_copy(update={"accept": True}),
        }
    )
