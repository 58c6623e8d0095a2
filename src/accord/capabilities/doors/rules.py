"""What the holder of a key may do through a local API. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final


class Door(Enum):
    """A local API."""

    OPENAI = "openai"
    MCP = "mcp"


@dataclass(frozen=True, slots=True)
class DoorScope:
    """What a key opens.

    Attributes:
        models: Names, or their beginnings with `*` at the end.
        tools: Capabilities in the same way; `llm.chat` and its tool `llm_chat` are the same.
        per_minute: Requests per minute; None for no limit.
        at_once: Requests at the same time; None for no limit.
        network: Whether it also opens the API to other machines of the home network.
    """

    doors: frozenset[Door]
    models: tuple[str, ...] = ("*",)
    tools: tuple[str, ...] = ("*",)
    per_minute: int | None = None
    at_once: int | None = None
    network: bool = False

    def allows_model(self, name: str) -> bool:
        """Whether a model may be used."""
        return _matches(self.models, name)

    def allows_tool(self, capability: str) -> bool:
        """Whether a capability may be called."""
        return _matches([tool_name(each) for each in self.tools], tool_name(capability))


OWNER: Final = DoorScope(frozenset(Door))
"""What the local token opens."""


@dataclass(frozen=True, slots=True)
class DoorKey:
    """A key without its secret; times in seconds since the epoch."""

    id: str
    name: str
    digest: str
    scope: DoorScope
    created_at: float
    expires_at: float


def tool_name(capability: str) -> str:
    """Return the name of a capability's tool; some clients refuse dots."""
    return capability.replace(".", "_")


def _matches(patterns: Sequence[str], name: str) -> bool:
    return any(
        name.startswith(each[:-1]) if each.endswith("*") else name == each for each in patterns
    )
