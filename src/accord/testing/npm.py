"""Programs and libraries from npm, for tests that need them."""

import shutil
import subprocess
from pathlib import Path

from accord.testing.errors import HarnessError


def installed(manifest: bytes, folder: Path) -> Path:
    """Install what a `package.json` names into a folder, unless it is there already.

    Scripts of packages are not run.

    Returns:
        The folder of the installed packages.

    Raises:
        HarnessError: There is no npm, or it could not install them.
    """
    npm, ready = shutil.which("npm"), folder / "ready"
    if npm is None or shutil.which("node") is None:
        raise HarnessError("Node and npm are not installed")
    modules = folder / "node_modules"
    if not ready.is_file() or ready.read_bytes() != manifest:
        shutil.rmtree(modules, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_bytes(manifest)
        command = [npm, "install", "--ignore-scripts", "--no-audit", "--no-fund"]
        command += ["--no-package-lock", "--fetch-retries=0", "--fetch-timeout=60000"]
        try:
            subprocess.run(command, cwd=folder, capture_output=True, timeout=300, check=True)  # noqa: S603
        except subprocess.SubprocessError as error:
            raise HarnessError("npm could not install what a test needs") from error
        ready.write_bytes(manifest)
    return modules
