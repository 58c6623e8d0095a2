"""Forms: texts and files, with limits of size and time.

What exceeds a limit is refused before it is stored.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import Request

from accord.console.errors import ConsoleError
from accord.web import bodies

_FIELDS: Final = 64
_FILES: Final = 4
_TEXT_BYTES: Final = 256 * 1024
# Texts arrive at once; files get the time that a slow line needs.
_TEXTS: Final = bodies.BodyLimits(_TEXT_BYTES, seconds=10.0)
_WITH_FILES: Final = bodies.BodyLimits(100 * 1024 * 1024, seconds=30.0, rate=32 * 1024)
_MULTIPART: Final = "multipart/form-data"


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form; the last one of each name."""

    texts: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, UploadFile] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """Return a stripped field; empty if it is missing."""
        return self.texts.get(name, "").strip()

    def needed(self, name: str, label: str) -> str:
        """Return a field, or raise `ConsoleError` if it is empty."""
        value = self.text(name)
        if not value:
            raise ConsoleError(f"{label} is missing", mend="fill it in")
        return value

    def number(self, name: str, label: str, least: float, most: float) -> float:
        """Return a number, or raise `ConsoleError` if it is none or not within the limits."""
        try:
            value = float(self.text(name)[:40])
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise ConsoleError(f"{label} should be a number from {least:g} to {most:g}")
        return value

    def file(self, name: str, label: str) -> UploadFile:
        """Return a file, or raise `ConsoleError` if none was chosen."""
        found = self.files.get(name)
        if found is None or not found.filename:
            raise ConsoleError(f"{label} is missing", mend="choose one")
        return found


@asynccontextmanager
async def read(request: Request, *, files: bool = True) -> AsyncIterator[Form]:
    """Yield the form of a request, or raise `ConsoleError`; its files are closed at the end."""
    if not files or not request.headers.get("content-type", "").lower().startswith(_MULTIPART):
        yield Form(await _texts(request))
        return
    given = await _multipart(request)
    try:
        yield Form(
            {name: value for name, value in given.items() if isinstance(value, str)},
            {name: value for name, value in given.items() if isinstance(value, UploadFile)},
        )
    finally:
        await given.close()


async def _texts(request: Request) -> dict[str, str]:
    try:
        body = await bodies.read(request, _TEXTS)
    except bodies.BodyError as error:
        raise _refusal(error) from None
    try:
        return dict(
            parse_qsl(
                body.decode(), keep_blank_values=True, max_num_fields=_FIELDS, errors="strict"
            )
        )
    except ValueError:
        raise _no_form("it cannot be read") from None


async def _multipart(request: Request) -> FormData:
    async with aclosing(bodies.parts(request, _WITH_FILES)) as parts:
        try:
            return await MultiPartParser(
                request.headers,
                parts,
                max_files=_FILES,
                max_fields=_FIELDS,
                max_part_size=_TEXT_BYTES,
            ).parse()
        except MultiPartException as error:
            raise _no_form(error.message) from None
        except bodies.BodyError as error:
            raise _refusal(error) from None
        except OSError as error:
            raise ConsoleError(
                f"there is no room for what was sent ({error.strerror})", status=507
            ) from error


def _refusal(error: bodies.BodyError) -> ConsoleError:
    return ConsoleError(error.what, mend=error.mend, status=error.status)


def _no_form(why: str) -> ConsoleError:
    return ConsoleError(f"this is not a form: {why}", mend="use the page's own")
