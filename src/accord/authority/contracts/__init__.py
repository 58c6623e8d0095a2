"""The contracts that the authority itself implements, written as anybody would write theirs.

`builtins()` are their manifests by id: always active, one digest for each id.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from accord.authority.contracts import auth, core, health, jobs, state


@cache
def builtins() -> Mapping[str, Mapping[str, Any]]:
    """The manifest of each built-in contract, by its id."""
    return MappingProxyType(
        {module.ID: module.contract().manifest() for module in (core, auth, state, health, jobs)}
    )


__all__ = ["builtins"]
