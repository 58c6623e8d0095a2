"""Names on both sides: a capability as an RPC, an RPC as a capability.

Pure. A capability's name is kept whole, so that no two become one RPC. An RPC's name may hold any
text, so two can become one capability; whoever makes several looks for that.
"""

import re
from dataclasses import dataclass
from typing import Final, Self

from accord.bridge.errors import BridgeError
from accord.contracts.naming import snake_name

CONTRACT: Final = "accord.community@v1"
"""The contract under which the community's capabilities stand in the catalog."""

CALLER: Final = "accord.bridge@v1"
"""The contract under which the bridge calls services for members."""

ROOT: Final = "Community"
SERVICES: Final = "experimental.service"
"""What the capabilities of services begin with; the specification owns every shorter prefix."""

_JOINT: Final = re.compile(r"_([a-z])")
_SERVICE: Final = re.compile(
    r"(?P<name>[^@/\s]{1,200})@v(?P<version>[0-9]{1,4})/(?P<rpc>\S{1,200})"
)
_BUILT_IN: Final = "trellis."


@dataclass(frozen=True, slots=True)
class Chosen:
    """An RPC that members may call.

    Attributes:
        contract: The id of its contract.
        rpc: Its name there.
        capability: Its name on the bus.
    """

    contract: str
    rpc: str
    capability: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `contract@v1/Rpc.Name`.

        Raises:
            BridgeError: Another form, or an RPC that never crosses.
        """
        found = _SERVICE.fullmatch(text)
        if found is None:
            raise BridgeError(
                f"{text[:120]!r} names no RPC of a contract", mend="write it like shop@v1/Shop.Find"
            )
        contract = f"{found['name']}@v{found['version']}"
        if contract in (CONTRACT, CALLER):
            raise BridgeError(
                "what comes from the community does not go back to it", where=repr(text[:120])
            )
        if contract.startswith(_BUILT_IN):
            raise BridgeError(
                "the authority's own services are not for members", where=repr(text[:120])
            )
        words = (_word(found["name"]), f"v{int(found['version'])}", _word(found["rpc"]))
        return cls(contract, found["rpc"], ".".join((SERVICES, *words)))


def rpc_name(capability: str) -> str:
    """A capability as an RPC: `rag.list_corpora` is `Community.Rag.ListCorpora`."""
    words = (_JOINT.sub(lambda joint: joint[1].upper(), word) for word in capability.split("."))
    return ".".join((ROOT, *(word[0].upper() + word[1:] for word in words)))


def is_of_a_service(capability: str) -> bool:
    """Whether a capability came over the bridge."""
    return capability.startswith(f"{SERVICES}.")


def _word(text: str) -> str:
    word = snake_name(text)
    return word if word[0].isalpha() else f"n{word}"
