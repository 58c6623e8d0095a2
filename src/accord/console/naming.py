"""How members are called on pages: as they call themselves, and by their display id."""

from collections.abc import Mapping
from typing import Any

from accord.community.envelope.names import display_id


class Names:
    """What the members of a community are called."""

    def __init__(self, known: Mapping[str, str | None]) -> None:
        self._known = known

    def __call__(self, node_id: str) -> str:
        """A member, or somebody who was one."""
        name = self._known.get(node_id)
        return f"{name} ({display_id(node_id)})" if name else display_id(node_id)


def names(told: Mapping[str, Any]) -> Names:
    """The names in what the node tells of its members."""
    return Names({each["node_id"]: each["display_name"] for each in told["members"]})
