"""A run as a process of its own, which says where it is, so that a test can kill it there.

It prints `jvm PID`, then the name of every step before it is done, then `done VERSION`.
"""

import sys
from pathlib import Path

from tests.pipeline.folders import BRISK

from accord.pipeline.errors import PipelineError
from accord.pipeline.folder import Layout, lock_folder
from accord.pipeline.runs import prepare, run
from accord.pipeline.session import jvm, open_session, watch_session
from accord.pipeline.tables import GOLD


def main(root: Path, master: str = "local[2]") -> int:
    layout = Layout(root)
    is_remote = master.startswith("sc://")
    where = {"remote": master} if is_remote else {"master": master}
    # A server that is there already takes no settings of its JVM.
    conf = {name: value for name, value in BRISK.items() if "sql" in name or not is_remote}
    try:
        with lock_folder(layout, "run") as lock:
            news = prepare(layout)
            with (
                open_session(root, **where, conf=conf, hold=(lock,)) as spark,
                watch_session(spark, layout.spark_log) as alive,
            ):
                process = jvm(spark)
                print(f"jvm {process.pid if process else None}", flush=True)
                outcome = run(
                    layout,
                    spark,
                    now_ms=1,
                    definitions=GOLD,
                    news=news,
                    progress=lambda step, _done, _total: print(step, flush=True),
                    alive=alive,
                )
    except PipelineError as error:
        print(f"error: {error}", flush=True)
        return 1
    print(f"done {outcome.version}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), *sys.argv[2:]))
