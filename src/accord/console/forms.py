"""What a form brought: texts and files, within limits.

Owns how much is read. Whatever is beyond a limit is refused before it is kept, so that no form can
fill the memory or, with a file, the disk.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import parse_qsl

from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect, Request

from accord.console.errors import ConsoleError

_FIELDS: Final = 64
_FILES: Final = 4
_TEXT_BYTES: Final = 256 * 1024
_FILE_BYTES: Final = 100 * 1024 * 1024
_MULTIPART: Final = "multipart/form-data"


@dataclass(frozen=True, slots=True)
class Form:
    """The fields of a form; each is the last that was given."""

    texts: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, UploadFile] = field(default_factory=dict)

    def text(self, name: str) -> str:
        """A field without the blanks around it; empty when it is missing."""
        return self.texts.get(name, "").strip()

    def needed(self, name: str, label: str) -> str:
        """A field that must be filled in.

        Raises:
            ConsoleError: It is empty.
        """
        value = self.text(name)
        if not value:
            raise ConsoleError(f"{label} is missing", mend="fill it in")
        return value

    def number(self, name: str, label: str, least: float, most: float) -> float:
        """A field with a number in it.

        Raises:
            ConsoleError: It is none, or not within the limits.
        """
        try:
            value = float(self.text(name)[:40])
        except ValueError:
            value = float("nan")
        if not least <= value <= most:
            raise ConsoleError(f"{label} should be a number from {least:g} to {most:g}")
        return value

    def file(self, name: str, label: str) -> UploadFile:
        """A file that must be there.

        Raises:
            ConsoleError: None was chosen.
        """
        found = self.files.get(name)
        if found is None or not found.filename:
            raise ConsoleError(f"{label} is missing", mend="choose one")
        return found


@asynccontextmanager
async def read(request: Request, *, files: bool = True) -> AsyncIterator[Form]:
    """The form of a request, whose files are there until the end of the block.

    Args:
        request: The request.
        files: Whether there may be any.

    Raises:
        ConsoleError: It is too long, or not a form.
    """
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
    body = b"".join([part async for part in _parts(request, _TEXT_BYTES)])
    try:
        return dict(
            parse_qsl(
                body.decode(), keep_blank_values=True, max_num_fields=_FIELDS, errors="strict"
            )
        )
    except ValueError:
        raise _no_form("it cannot be read") from None


async def _multipart(request: Request) -> FormData:
    async with aclosing(_parts(request, _FILE_BYTES)) as parts:
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
        except OSError as error:
            raise ConsoleError(
                f"there is no room for what was sent ({error.strerror})", status=507
            ) from error


async def _parts(request: Request, most: int) -> AsyncGenerator[bytes, None]:
    left = most
    try:
        async for part in request.stream():
            left -= len(part)
            if left < 0:
                raise _too_long(most)
            yield part
    except ClientDisconnect:
        raise _no_form("it broke off") from None


def _too_long(most: int) -> ConsoleError:
    return ConsoleError(
        f"this is more than {most} bytes", mend="send less, or use the command", status=413
    )


def _no_form(why: str) -> ConsoleError:
    return ConsoleError(f"this is not a form: {why}", mend="use the page's own")
