"""Packs the npm package `accord-fabric`, as `make npm-package` does.

Types are checked, the JavaScript is built, and `npm pack` makes one file of both. Node comes from
the environment of the tests.
"""

import argparse
import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

from filelock import FileLock

from accord.testing import nodejs

PACKAGE: Final = Path(__file__).parent
ROOT: Final = PACKAGE.parents[1]


def pack(out: Path, work: Path) -> Path:
    """Pack into the folder `out` and return the file; `work` keeps what npm installs."""
    work.mkdir(parents=True, exist_ok=True)
    with FileLock(work.with_suffix(".lock")):
        manifest = (PACKAGE / "package.json").read_bytes()
        lock = (PACKAGE / "package-lock.json").read_bytes()
        modules = nodejs.install_packages(manifest, work, lock=lock)
        built = work / "package"
        shutil.rmtree(built, ignore_errors=True)
        built.mkdir()
        for name in ("package.json", "tsconfig.json", "README.md"):
            shutil.copy(PACKAGE / name, built)
        shutil.copy(ROOT / "LICENSE", built)
        shutil.copytree(PACKAGE / "src", built / "src")
        tsc = modules / "typescript/bin/tsc"
        subprocess.run([nodejs.node_program(), tsc, "--project", built], check=True)
        out.mkdir(parents=True, exist_ok=True)
        words = ("pack", "--json", "--ignore-scripts", "--pack-destination", str(out.resolve()))
        (packed,) = json.loads(nodejs.run_npm(built, *words))
        return out / str(packed["filename"])


def main() -> None:
    """Do it as a command."""
    parser = argparse.ArgumentParser(description="Pack the npm package accord-fabric.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="where the file goes")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build/typescript", help="where npm installs"
    )
    given = parser.parse_args()
    print(f"Written to {pack(given.out, given.work)}.")


if __name__ == "__main__":
    main()
