"""Which packages brought this library: `accord`, or `accord-fabric` alone."""

import warnings
from importlib import metadata
from typing import Final

_PACKAGES: Final = ("accord", "accord-fabric")


def warn_of_two_versions() -> None:
    """Warn if both packages are installed in different versions, whose files are then mixed."""
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    if len(set(found.values())) > 1:
        named = " and ".join(f"{name} {version}" for name, version in found.items())
        warnings.warn(
            f"{named} are both installed, and put their files into one folder; uninstall both, "
            "and install one of them",
            RuntimeWarning,
            stacklevel=3,
        )
