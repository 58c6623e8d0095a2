"""The folder `demo` in a home: the devices of its neighbours, and the steps that are done.

A home that people use is never touched.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from accord.demo.story import story
from accord.kernel.files import sync_folder
from accord.kernel.signing import SigningKey
from accord.station.errors import StationError
from accord.station.sections import StationSettings
from accord.station.settings import Settings

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
