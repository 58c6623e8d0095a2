"""A revocation that nobody signed: for asking the fold what a real one would do. Pure.

It is composed of what a community's state says about its members and their chains. Its signatures
are empty places, so that no node would ever take it; the fold does not look at signatures.
"""

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from accord.community.envelope import Event, read
from accord.community.envelope.forms import write_signature
from accord.community.envelope.names import Level
from accord.kernel.signing import SIGNATURE_SIZE
from accord.pipeline.errors import PipelineError

REVOKED: Final = "community.member.revoked"
DEFAULT_SIGNATURES: Final = 3

_UNSIGNED: Final = write_signature(bytes(SIGNATURE_SIZE))
# After everything else at its lamport.
_LAST_ULID: Final = "7" + "Z" * 25

State = Mapping[str, Any]
"""A community's state, as `fold.state_object` has it."""


class Cut(NamedTuple):
    """The last event of the target that would count, by number and hash."""

    seq: int
    hash: str | None


def needed_signatures(state: State) -> int:
    """How many members must sign a revocation."""
    return int((state["policy"] or {}).get("min_signatures_to_revoke", DEFAULT_SIGNATURES))


def able_to_sign(state: State, target: str) -> list[str]:
    """The members who may sign, the most trusted and longest-standing first."""
    trusted = [
        (-Level.parse(each["level"]), each["since"]["lamport"], each["node_id"])
        for each in state["members"]
        if each["node_id"] != target and Level.parse(each["level"]) >= Level.TRUSTED
    ]
    return [node_id for *_, node_id in sorted(trusted)]


def compose(state: State, target: str, cut: Cut, lamport: int) -> Event:
    """The revocation, as the member that may write it would write it next.

    Raises:
        PipelineError: Nobody could write it.
    """
    able = able_to_sign(state, target)
    chains = {each["author"]: each for each in state["authors"]}
    author = next((each for each in able if _is_whole(chains.get(each))), None)
    if author is None:
        raise PipelineError(
            "nobody else in the community may revoke, so a revocation could not be written",
            mend="the community needs another trusted member",
        )
    others = [each for each in able if each != author][: needed_signatures(state) - 1]
    chain = chains[author]
    return read(
        {
            "schema_version": 1,
            "event_id": _LAST_ULID,
            "lamport": lamport,
            "wall_clock": state["created_at"],
            "community_id": state["community_id"],
            "author": author,
            "author_seq": chain["author_seq"] + 1,
            "prev": chain["hash"],
            "event_type": REVOKED,
            "data": {
                "client_id": "whatif",
                "target_node_id": target,
                "reason": "other",
                "target_last_seq": cut.seq,
                "target_last_hash": cut.hash,
                "co_signers": [{"node_id": each, "signature": _UNSIGNED} for each in others],
            },
            "signature": _UNSIGNED,
        }
    )


def _is_whole(chain: Mapping[str, Any] | None) -> bool:
    """Whether an author can go on writing, and be believed."""
    return (
        chain is not None
        and chain["equivocation"] is None
        and chain["broken"] is None
        and chain["author_seq"] == chain["seen_seq"]
    )
