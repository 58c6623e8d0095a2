"""The engines of this machine, each call in a child process of its own.

`python -m accord.capabilities.media.engines WHAT ARGUMENTS` is that child: it reads a file from
stdin and answers with JSON.
"""

import base64
import json
from io import BytesIO
from typing import Any, Final

from accord.capabilities import child_process, models
from accord.capabilities.media import pages, speech
from accord.community.errors import bad_request

_MODULE: Final = "accord.capabilities.media.engines"
# Libraries reserve far more addresses than they use.
_MEMORY: Final = 6 * 1024**3
_CPU_SECONDS: Final = 900
_LONGEST_SIDE: Final = 2000


async def read_pages(data: bytes, *, most: int, seconds: float) -> dict[str, Any]:
    """Return `count` of the pages, and the texts of all `pages` unless they are too many."""
    told: dict[str, Any] = await _ask("read", {"most": most}, data, seconds)
    return told


async def picture_pages(data: bytes, *, most: int, seconds: float) -> dict[str, Any]:
    """Return the same with each page as a PNG in base64."""
    told: dict[str, Any] = await _ask("pictures", {"most": most}, data, seconds)
    return told


async def speak(text: str, *, language: str, speed: float, seconds: float) -> bytes:
    """Return a WAV file with a text."""
    asked = {"language": language, "speed": speed}
    return base64.b64decode(await _ask("speak", asked, text.encode(), seconds, "the text"))


async def transcribe(data: bytes, *, seconds: float) -> str:
    """Return the words in a WAV file."""
    return str(await _ask("transcribe", {}, data, seconds, "the recording"))


async def _ask(
    what: str, asked: dict[str, Any], data: bytes, seconds: float, about: str = "the file"
) -> Any:
    return await child_process.ask(
        _MODULE, [what, json.dumps(asked)], data, seconds=seconds, what=about
    )


def _work(arguments: list[str], data: bytes) -> Any:
    what, asked = arguments[0], json.loads(arguments[1])
    if what == "read":
        return _read(data, asked["most"])
    if what == "pictures":
        return _pictures(data, asked["most"])
    if what == "speak":
        said = speech.speak(data.decode(), language=asked["language"], speed=asked["speed"])
        return base64.b64encode(said).decode()
    if what == "transcribe":
        return speech.transcribe(data)
    raise bad_request(f"there is no engine {what}")


def _read(data: bytes, most: int) -> dict[str, Any]:
    from accord.capabilities.media import ocr

    count, found = pages.pictures(data, most)
    if count > most:
        return {"count": count, "pages": []}
    reader = ocr.TextReader(models.ocr_folder(), threads=models.threads(0))
    return {"count": count, "pages": [ocr.as_text(reader.read(each)) for each in found]}


def _pictures(data: bytes, most: int) -> dict[str, Any]:
    count, pictures = pages.pictures(data, most)
    found: list[str] = []
    for each in pictures if count <= most else ():
        each.thumbnail((_LONGEST_SIDE, _LONGEST_SIDE))
        made = BytesIO()
        each.convert("L").save(made, "PNG")
        found.append(base64.b64encode(made.getvalue()).decode())
    return {"count": count, "pages": found}


if __name__ == "__main__":
    child_process.limit_process(memory=_MEMORY, cpu_seconds=_CPU_SECONDS)
    child_process.serve(_work, "the file")
