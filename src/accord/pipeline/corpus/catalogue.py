"""The catalogue of a built corpus: the one file that says which parts it consists of.

It is replaced by one rename, when everything that it names is on the disk. What it does not name
is not part of the corpus.
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from accord.kernel import canonical
from accord.kernel.files import sync_folder
from accord.pipeline.corpus.plan import RECIPE, Refused
from accord.pipeline.errors import PipelineError

FORM: Final = 1
"""The version of the form of a built corpus that this code writes and knows."""

_MOST_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Catalogue:
    """What a built corpus consists of.

    Attributes:
        corpus: The name it was built for.
        recipe: How documents were cut and embedded.
        documents: How many there are.
        chunks: How many parts of documents can be found.
        parts: The files in which they are.
        refused: What was left out.
    """

    corpus: str
    recipe: str
    documents: int
    chunks: int
    parts: tuple[str, ...]
    refused: tuple[Refused, ...]


def parts_folder(out: Path) -> Path:
    """Where the parts of a built corpus are."""
    return out / "parts"


def publish(out: Path, catalogue: Catalogue) -> None:
    """Let a catalogue stand, for all readers at once."""
    new = out / "_corpus.json"
    with new.open("wb") as file:
        file.write(canonical.encode({"form": FORM, **asdict(catalogue)}))
        file.flush()
        os.fsync(file.fileno())
    new.replace(_path(out))
    sync_folder(out)


def published(out: Path) -> Catalogue | None:
    """The catalogue that stands; None before the first.

    Raises:
        PipelineError: It is damaged, or of another form.
    """
    try:
        with _path(out).open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PipelineError(
            f"the corpus cannot be read: {error.strerror}", where=str(_path(out))
        ) from error
    return _read(out, data)


def usable(out: Path) -> Catalogue:
    """The catalogue of a corpus that this node can load.

    Raises:
        PipelineError: Nothing is built there, or it was built in another way.
    """
    catalogue = published(out)
    if catalogue is None:
        raise PipelineError(
            "there is no built corpus",
            where=str(out),
            mend="build one with `accord pipeline corpus build`",
        )
    if catalogue.recipe != RECIPE:
        raise PipelineError(
            f"the corpus was made by {catalogue.recipe[:80]!r}, and this node uses {RECIPE!r}",
            where=str(out),
            mend="build it again with this release",
        )
    return catalogue


def _path(out: Path) -> Path:
    return out / "corpus.json"


def _read(out: Path, data: bytes) -> Catalogue:
    try:
        told: dict[str, Any] = canonical.decode(data, max_bytes=_MOST_BYTES)
        if told["form"] != FORM:
            raise PipelineError(
                f"the corpus is of form {str(told['form'])[:20]}, and {FORM} is known here",
                where=str(out),
                mend="use the release that built it, or build it again",
            )
        return Catalogue(
            str(told["corpus"]),
            str(told["recipe"]),
            int(told["documents"]),
            int(told["chunks"]),
            tuple(map(str, told["parts"])),
            tuple(Refused(str(each["name"]), str(each["reason"])) for each in told["refused"]),
        )
    except (canonical.CanonicalError, KeyError, TypeError, ValueError) as error:
        raise PipelineError(
            "the catalogue of the corpus is damaged",
            where=str(_path(out)),
            mend="build the corpus again; only what is missing is made",
        ) from error
