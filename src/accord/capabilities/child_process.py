"""Child processes that handle other people's files under limits of memory and time.

A parent asks with `ask`; the child answers once with `serve`. What the child refuses arrives as the
`CommunityError` that it raised. No library for file formats is trusted with more than this.
"""

import asyncio
import json
import os
import resource
import sys
from collections.abc import Callable, Sequence
from typing import Any, Final

from accord.community.errors import Code, CommunityError, bad_request

# Enough to find libraries; the rest of the environment is withheld from the child.
_NEEDED: Final = ("PATH", "PYTHONPATH", "PYTHONHOME", "SYSTEMROOT")


async def ask(
    module: str, arguments: Sequence[str], data: bytes, *, seconds: float, what: str
) -> Any:
    """Run a module of ours on some bytes, and return its answer.

    Args:
        what: What the bytes are, for errors: "the document".

    Raises:
        CommunityError: The child refuses them, or takes too much time or memory: `bad_request`; a
            library is missing: `not_implemented`.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        module,
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env={name: os.environ[name] for name in _NEEDED if name in os.environ},
    )
    try:
        async with asyncio.timeout(seconds):
            answer, _ = await process.communicate(data)
    except TimeoutError:
        raise bad_request(
            f"{what} could not be read within {seconds:g} seconds", mend="save it anew"
        ) from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise bad_request(f"{what} takes too much time or memory to be read", mend="save it anew")
    said = json.loads(answer)
    if "refused" in said:
        raise CommunityError(Code(said["code"]), said["refused"], mend=said["mend"])
    return said["answer"]


def serve(work: Callable[[list[str], bytes], Any], what: str) -> None:
    """Answer a parent: `work` gets the arguments and the bytes, and returns JSON."""
    data = sys.stdin.buffer.read()
    try:
        answer = {"answer": work(sys.argv[1:], data)}
    except CommunityError as error:
        answer = {"refused": error.what, "mend": error.mend, "code": error.code.value}
    except Exception as error:  # noqa: BLE001 - libraries raise anything at a damaged file
        damaged = f"{what} is damaged ({type(error).__name__})"
        answer = {"refused": damaged, "mend": "save it anew", "code": Code.BAD_REQUEST.value}
    sys.stdout.buffer.write(json.dumps(answer).encode())


def limit_process(*, memory: int, cpu_seconds: int) -> None:
    """Limit this process, which then also writes no file."""
    for what, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
