"""Where the demo may live, and how far it has come there.

Owns the folder `demo` in a home: the devices of its neighbours, and a note of what is done. A home
that people use is never touched.
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

# What happened lands soon, so that the pipeline's page has something to count.
_EXPORT_SECONDS: Final = 15.0


@dataclass(frozen=True, slots=True)
class DemoHome:
    """The places of the demo in a home."""

    path: Path

    @classmethod
    def of(cls, home: Path) -> "DemoHome":
        """Those of this home."""
        return cls(home / "demo")

    def neighbour(self, name: str) -> Path:
        """The device of a neighbour."""
        return self.path / "neighbours" / name

    def done(self) -> list[str]:
        """The steps that were done here, in their order."""
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
        """Remember that a step was done."""
        draft = self._note.with_suffix(".draft")
        draft.write_text(json.dumps([*self.done(), step]))
        draft.replace(self._note)
        sync_folder(self.path)

    @property
    def _note(self) -> Path:
        return self.path / "done.json"


def kept_key(file: Path) -> SigningKey:
    """The key of a file, which is made, for its owner only, where it is not there.

    Raises:
        SigningError: It cannot be made or read.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    return SigningKey.load(file) if file.exists() else SigningKey.create(file)


def prepared(settings: Settings) -> Settings:
    """The settings of a demo in this home.

    Raises:
        StationError: The home is somebody's.
    """
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
