"""The contracts that the authority itself implements, written as anybody would write theirs.

`builtins()` are their manifests by id: always active, one digest for each id.
"""

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from accord.authority.contracts import builtin
from accord.authority.contracts.builtin import AUTH_ID, CORE_ID, HEALTH_ID, JOBS_ID, STATE_ID


@cache
def builtins() -> Mapping[str, Mapping[str, Any]]:
    """The manifest of each built-in contract, by its id."""
    return MappingProxyType(
        {
            builtin.CORE_ID: builtin.core_contract().manifest(),
            builtin.AUTH_ID: builtin.auth_contract().manifest(),
            builtin.STATE_ID: builtin.state_contract().manifest(),
            builtin.HEALTH_ID: builtin.health_contract().manifest(),
            builtin.JOBS_ID: builtin.jobs_contract().manifest(),
        }
    )


__all__ = [
    "AUTH_ID",
    "CORE_ID",
    "HEALTH_ID",
    "JOBS_ID",
    "STATE_ID",
    "builtins",
]
