"""The catalogue of a built corpus: the file that lists its parts.

It is replaced by one rename after all its parts are on disk. Parts that it does not list do not
belong to the corpus.
"""

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from accord.kernel import canonical
from accord.kernel.files import sync_folder
from accord.pipeline.corpus.plan import RECIPE, RefusedDocument
from accord.pipeline.errors import PipelineError

FORM: Final = 1
"""The format version of a built corpus."""

_MOST_BYTES: Final = 256 << 20


@dataclass(frozen=True, slots=True)
class Catalogue:
    """The contents of a built corpus.

    Attributes:
        recipe: How documents were cut and embedded.
        documents: The number of documents.
        chunks: The number of chunks.
        parts: The names of the files.
    """

    corpus: str
    recipe: str
    documents: int
    chunks: int
    parts: tuple[str, ...]
    refused: tuple[RefusedDocument, ...]


def parts_folder(out: Path) -> Path:
    """The folder of the parts of a built corpus."""
    return out / "parts"


def publish(out: Path, catalogue: Catalogue) -> None:
    """Replace the catalogue, for all readers at once."""
    new = out / "_corpus.json"
    with new.open("wb") as file:
        file.write(canonical.encode({"form": FORM, **asdict(catalogue)}))
        file.flush()
        os.fsync(file.fileno())
    new.replace(_path(out))
    sync_folder(out)


def published(out: Path) -> Catalogue | None:
    """The catalogue; None before the first; raise `PipelineError` if it is damaged."""
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
    """The catalogue of a corpus that this node can load; raise `PipelineError` if there is none."""
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
        fields: dict[str, Any] = canonical.decode(data, max_bytes=_MOST_BYTES)
        if fields["form"] != FORM:
            raise PipelineError(
                f"the corpus is of form {str(fields['form'])[:20]}, and {FORM} is known here",
                where=str(out),
                mend="use the release that built it, or build it again",
            )
        return Catalogue(
            str(fields["corpus"]),
            str(fields["recipe"]),
            int(fields["documents"]),
            int(fields["chunks"]),
            tuple(map(str, fields["parts"])),
            tuple(
                RefusedDocument(str(each["name"]), str(each["reason"]))
                for each in fields["refused"]
            ),
        )
    except (canonical.CanonicalError, KeyError, TypeError, ValueError) as error:
        raise PipelineError(
            "the catalogue of the corpus is damaged",
            where=str(_path(out)),
            mend="build the corpus again; only what is missing is made",
        ) from error
