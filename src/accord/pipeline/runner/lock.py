"""One run at a time: the lock of a pipeline's folder, and who holds it.

The lock belongs to an open file, which the JVM inherits: it is free when the last process that
could still write to the folder has gone, not when the first one has.
"""

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO

from accord.pipeline.errors import PipelineError
from accord.pipeline.layout import Layout


@contextmanager
def held(layout: Layout, doing: str) -> Iterator[int]:
    """Hold the folder until the block ends.

    Args:
        layout: The folder, which is made where it is missing.
        doing: What for, for whoever finds it held.

    Yields:
        The file descriptor that holds it.

    Raises:
        PipelineError: Another process holds it, or the folder cannot be written.
    """
    try:
        layout.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(layout.lock, os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise PipelineError(
            f"the pipeline's folder cannot be used: {error.strerror}",
            where=str(layout.root),
            mend="let this user write to it, or name another with --folder",
        ) from error
    with FileIO(descriptor, "r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise _refusal(layout, lock.read(1000)) from None
        lock.truncate()
        lock.write(json.dumps({"pid": os.getpid(), "doing": doing}).encode())
        yield descriptor


def holder(layout: Layout) -> str | None:
    """Who holds the folder now, as a clause; none if it is free."""
    try:
        with FileIO(layout.lock) as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return _who(lock.read(1000))
    except OSError:
        # Without a lock file that can be opened nobody has run here.
        return None
    return None


def _refusal(layout: Layout, written: bytes) -> PipelineError:
    return PipelineError(
        f"{_who(written)} holds this pipeline",
        where=str(layout.root),
        mend="wait until it has ended; one run at a time changes the tables",
    )


def _who(written: bytes) -> str:
    try:
        told = json.loads(written)
        pid, doing = int(told["pid"]), str(told["doing"])[:40]
    except (ValueError, KeyError, TypeError):
        return "another process"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return f"the Spark of process {pid} (`{doing}`), which has ended,"
    except PermissionError:
        pass  # it is somebody else's, and it lives
    return f"process {pid} (`accord pipeline {doing}`)"
