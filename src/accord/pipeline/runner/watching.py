"""Watching Spark while it works: a JVM that died or hangs ends the run with a sentence.

A thread looks at the JVM and at the time since the last sign of life. Where there is none for too
long it ends the JVM, which frees whoever waits for an answer. What Spark raises is put into words
here, and nowhere else.
"""

import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from accord.pipeline.errors import PipelineError
from accord.pipeline.session import jvm

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PATIENCE: Final = 3600.0
"""Seconds without a sign of life after which a run is given up, unless told otherwise."""

_GLANCE_SECONDS: Final = 0.2
_LONGEST: Final = 300

_WORKER: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)")
_PREFACE: Final = re.compile(r"^.{0,20}Query \[[^\]]*\] terminated with exception: ")

# In the words of the C library; a limit on the size of files is met like a full disk.
_FULL: Final = ("No space left on device", "Disk quota exceeded", "File too large")


class _Watch:
    def __init__(self, spark: "SparkSession", patience: float) -> None:
        self._spark = spark
        self._process = jvm(spark)
        self._patience = patience
        self._last = time.monotonic()
        self._over = threading.Event()
        self.timed_out = False

    def alive(self) -> None:
        self._last = time.monotonic()

    def watch(self) -> None:
        while not self._over.wait(_GLANCE_SECONDS):
            if time.monotonic() - self._last > self._patience:
                self.timed_out = True
                _end(self._process, self._spark)
                return

    def stop(self) -> None:
        self._over.set()

    def status(self) -> int | None:
        """How the JVM ended, if it has; a moment is given to one that is just dying."""
        if self._process is None:
            return None
        try:
            return self._process.wait(_GLANCE_SECONDS)
        except subprocess.TimeoutExpired:
            return None


@contextmanager
def watched(
    spark: "SparkSession", log: Path, patience: float = PATIENCE
) -> Iterator[Callable[[], None]]:
    """Watch over a session while the block runs.

    Args:
        spark: The session.
        log: The file to look into, for the reader of an error.
        patience: Seconds without a sign of life after which the work is given up.

    Yields:
        A function to call whenever the work has come further.

    Raises:
        PipelineError: Spark died, hung, or failed.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    watch = _Watch(spark, patience)
    thread = threading.Thread(target=watch.watch, name="watch over Spark", daemon=True)
    thread.start()
    try:
        yield watch.alive
    except (PySparkException, Py4JError, OSError) as error:
        status = watch.status()
        if watch.timed_out:
            raise PipelineError(
                f"Spark gave no sign of life for {patience:.0f} seconds and was ended",
                mend=f"look into {log}, run again, or allow more with --patience",
            ) from error
        if status is not None:
            raise PipelineError(
                f"Spark's JVM has ended ({_ending(status)})",
                mend=f"run again, it goes on from there; {log} may say why",
            ) from error
        raise _failure(error, log) from error
    finally:
        watch.stop()
        thread.join()


def _end(process: "subprocess.Popen[bytes] | None", spark: "SparkSession") -> None:
    if process is None:
        spark.interruptAll()
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def _ending(status: int) -> str:
    return f"killed by {signal.Signals(-status).name}" if status < 0 else f"exit status {status}"


def _failure(error: Exception, log: Path) -> PipelineError:
    text = words(error)
    if any(each in text for each in _FULL):
        return PipelineError(
            "the disk is full; nothing was published, and what was published stands",
            mend="make room and run again",
        )
    if isinstance(error, OSError):
        return PipelineError(f"a file cannot be used: {error.strerror}", where=error.filename)
    # A Python worker's own error comes last in its traceback, which Spark's words follow.
    found = _WORKER.search(text)
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    reason = found[1] if found else _PREFACE.sub("", first)
    return PipelineError(f"Spark failed: {reason[:_LONGEST]}", mend=f"look into {log}")


def words(error: Exception) -> str:
    """Everything that Spark says about an error, also when its JVM can no longer be asked."""
    told = [getattr(error, name, None) for name in ("_desc", "_stackTrace")]
    return "\n".join(map(str, filter(None, told))) or str(error)
