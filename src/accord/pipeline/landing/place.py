"""Where segments lie: a folder of this machine, or any place that fsspec knows by its URL.

Owns how a segment appears (whole, or not at all), how segments are listed, and what is left of one
that is retired. Names that begin with `_` are not segments; Spark passes over them too. Never looks
at records.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from accord.kernel.files import sync_folder, write_private
from accord.pipeline.errors import PipelineError, missing_extra
from accord.pipeline.landing.segments import Footer, Segment, parse_name, read_footer, verify
from accord.pipeline.streams import STREAMS

RETIRED: Final = "_retired"
"""The folder of empty files that remember the names of segments which are no longer kept."""

# Where a put shows the whole object or nothing; elsewhere a file gets its name when it is whole.
_PUT_IS_ATOMIC: Final = frozenset(
    {"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oci", "oss", "memory"}
)


class Landing:
    """The place where segments land; made by a folder or a URL, and made on disk when needed.

    Raises:
        PipelineError: The URL is of a kind that is not known here.
    """

    def __init__(self, where: str | os.PathLike[str]) -> None:
        text = os.fspath(where)
        is_local = "://" not in text or text.startswith(("file://", "local://"))
        self.label = _shown(text)
        self._folder = (
            Path(text.partition("://")[2] if "://" in text else text) if is_local else None
        )
        if self._folder is None:
            self._fs, self._root = _filesystem(text, self.label)
            self._is_atomic = not _PUT_IS_ATOMIC.isdisjoint(_protocols(self._fs))

    def __str__(self) -> str:
        return self.label

    def segments(self, stream: str) -> list[Segment]:
        """The segments of a stream that lie here, by store and first record."""
        return self._named(stream, stream)

    def retired(self, stream: str) -> list[Segment]:
        """The segments that lay here once and are no longer kept."""
        return self._named(stream, f"{RETIRED}/{stream}")

    def landed(self) -> dict[str, int]:
        """How many records ever landed here, by stream."""
        return {
            stream: sum(each.rows for each in {*self.segments(stream), *self.retired(stream)})
            for stream in STREAMS
        }

    def put(self, segment: Segment, data: bytes) -> None:
        """Let a segment appear; when this returns it is there to stay.

        Raises:
            PipelineError: It cannot be written; nothing of it is seen.
        """
        with self._explained("the segment cannot be written", segment):
            if self._folder is not None:
                _publish(self._folder / segment.stream, segment.name, data)
            elif self._is_atomic:
                self._fs.pipe_file(f"{self._root}/{segment.stream}/{segment.name}", data)
            else:
                folder = f"{self._root}/{segment.stream}"
                self._fs.makedirs(folder, exist_ok=True)
                self._fs.pipe_file(f"{folder}/_{segment.name}", data)
                self._fs.mv(f"{folder}/_{segment.name}", f"{folder}/{segment.name}")

    def read(self, segment: Segment) -> bytes:
        """The bytes of a segment.

        Raises:
            PipelineError: It cannot be read.
        """
        with self._explained("the segment cannot be read", segment):
            if self._folder is not None:
                return (self._folder / segment.stream / segment.name).read_bytes()
            data: bytes = self._fs.cat_file(f"{self._root}/{segment.stream}/{segment.name}")
            return data

    def footer(self, segment: Segment) -> Footer:
        """What the end of a segment says; its other bytes are not looked at.

        Raises:
            PipelineError: It cannot be read, or is no segment that this code knows.
        """
        with self._explained("the segment cannot be read", segment):
            if self._folder is not None:
                return read_footer(self._folder / segment.stream / segment.name, segment.name)
            path = f"{self._root}/{segment.stream}/{segment.name}"
            with self._fs.open(path, "rb") as file:
                return read_footer(file, segment.name)

    def verify(self, segment: Segment) -> Footer:
        """Prove every byte of a segment.

        Raises:
            PipelineError: It cannot be read, or is not what was written.
        """
        return verify(segment, self.read(segment))

    def retire(self, segment: Segment) -> None:
        """Keep a segment no longer, and remember that it lay here.

        Raises:
            PipelineError: The place cannot be written.
        """
        with self._explained("the segment cannot be removed", segment):
            if self._folder is not None:
                _publish(self._folder / RETIRED / segment.stream, segment.name, b"")
                (self._folder / segment.stream / segment.name).unlink(missing_ok=True)
            else:
                self._fs.makedirs(f"{self._root}/{RETIRED}/{segment.stream}", exist_ok=True)
                self._fs.pipe_file(f"{self._root}/{RETIRED}/{segment.stream}/{segment.name}", b"")
                with suppress(FileNotFoundError):
                    self._fs.rm_file(f"{self._root}/{segment.stream}/{segment.name}")

    def sweep(self, stream: str, store: str) -> None:
        """Remove what an exporter of this store left half-written when it was killed.

        Raises:
            PipelineError: The place cannot be written.
        """
        for name in self._names(stream):
            if name.startswith(f"_{store}-"):
                with self._explained("the place cannot be tidied"):
                    if self._folder is not None:
                        (self._folder / stream / name).unlink(missing_ok=True)
                    else:
                        self._fs.rm_file(f"{self._root}/{stream}/{name}")

    def _named(self, stream: str, folder: str) -> list[Segment]:
        found = (parse_name(stream, name) for name in self._names(folder))
        return sorted(
            (each for each in found if each is not None),
            key=lambda each: (each.store, each.first, each.last, each.digest),
        )

    def _names(self, folder: str) -> list[str]:
        with self._explained("the place cannot be listed"):
            try:
                if self._folder is not None:
                    return [file.name for file in (self._folder / folder).iterdir()]
                # What others put there since we last looked must be seen.
                self._fs.invalidate_cache()
                listed = self._fs.ls(f"{self._root}/{folder}", detail=False)
            except FileNotFoundError:
                return []
            return [str(path).rstrip("/").rpartition("/")[2] for path in listed]

    @contextmanager
    def _explained(self, what: str, segment: Segment | None = None) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PipelineError(
                f"{what} ({error.strerror or type(error).__name__})",
                where=f"{self.label}/{segment.stream}/{segment.name}" if segment else self.label,
                mend="choose a place that exists, can be written and has space; "
                "what has landed is safe, and the next export goes on from there",
            ) from error


def _publish(folder: Path, name: str, data: bytes) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = folder / f"_{name}"
    draft.unlink(missing_ok=True)
    try:
        write_private(draft, data)
        draft.rename(folder / name)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    sync_folder(folder)


def _filesystem(url: str, label: str) -> tuple[Any, str]:
    try:
        from fsspec.core import url_to_fs
    except ImportError:
        raise missing_extra() from None
    try:
        fs, path = url_to_fs(url)
    except (ImportError, ValueError) as error:
        reason = str(error).partition("\n")[0][:200]
        raise PipelineError(
            f"segments cannot be put there ({reason})",
            where=label,
            mend="give a folder, or install the fsspec package for that kind of URL",
        ) from None
    return fs, str(path).rstrip("/")


def _protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def _shown(text: str) -> str:
    """A place as people may see it: without user and password."""
    scheme, found, rest = text.partition("://")
    if not found:
        return text
    host, slash, path = rest.partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path.partition('?')[0]}"
