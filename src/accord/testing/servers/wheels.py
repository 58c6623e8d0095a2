"""Finds the programs that wheels bring, without importing the wheels."""

from importlib import metadata
from pathlib import Path

from accord.testing.errors import HarnessError


def program(wheel: str, pattern: str) -> Path:
    """The file of an installed wheel that matches a path pattern; the last one by name.

    Raises:
        HarnessError: The wheel is not installed, or holds no such file.
    """
    try:
        files = metadata.files(wheel) or []
    except metadata.PackageNotFoundError:
        files = []
    found = sorted(Path(str(file.locate())) for file in files if file.match(pattern))
    if not found or not found[-1].exists():
        raise HarnessError(
            f"the program {pattern} of the wheel {wheel} is not installed",
            mend="pip install 'accord[dev]'",
        )
    return found[-1].resolve()
