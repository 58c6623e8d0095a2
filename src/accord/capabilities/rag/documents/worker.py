"""Reading one document in a process of its own, which the system stops when it takes too much.

`python -m accord.capabilities.rag.documents.worker KIND` reads a file from stdin and writes to
stdout what it says, or why it is refused. It writes no file, and only reads those of the libraries.
"""

import json
import resource
import sys
from typing import Any, Final

from accord.capabilities.rag.documents.document import Document, refused
from accord.capabilities.rag.documents.kinds import Kind
from accord.capabilities.rag.documents.readers import READERS
from accord.community.errors import CommunityError

MAX_MEMORY: Final = 1024**3
CPU_SECONDS: Final = 20


def main() -> None:
    """Read stdin, write stdout."""
    _limit()
    data = sys.stdin.buffer.read()
    try:
        answer = write(_read(sys.argv[1], data))
    except CommunityError as error:
        answer = {"refused": error.what, "mend": error.mend, "code": error.code.value}
    except Exception as error:  # noqa: BLE001 - libraries raise anything at a damaged file
        damaged = refused(f"the document is damaged ({type(error).__name__})")
        answer = {"refused": damaged.what, "mend": "save it anew", "code": damaged.code.value}
    sys.stdout.buffer.write(json.dumps(answer).encode())


def write(document: Document) -> dict[str, Any]:
    """A document as JSON."""
    passages = [(each.text, each.page, each.heading) for each in document.passages]
    return {"title": document.title, "passages": passages}


def _read(kind: str, data: bytes) -> Document:
    return READERS[Kind(kind)](data)


def _limit() -> None:
    for what, most in (
        (resource.RLIMIT_AS, MAX_MEMORY),
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))


if __name__ == "__main__":
    main()
