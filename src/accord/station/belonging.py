"""An invite that comes too late: what a home is in already, told before or while its station runs.

Owns the rule and its sentence. It joins nothing, and looks at names of files alone.
"""

from collections.abc import Collection
from pathlib import Path

from accord.community.envelope.invites import Invite
from accord.community.envelope.names import display_id
from accord.station.errors import StationError
from accord.station.plane import PartReport

_MEND = (
    "start without the invite, then `accord community join LINK` joins another one beside it; or "
    "name another home"
)


def joined(home: Path) -> frozenset[str]:
    """The display ids of the communities in which the node of a home has signed something."""
    return frozenset(file.parent.name for file in home.glob("communities/*/signed.*"))


def refuse_late(home: Path, invite: Invite) -> None:
    """Refuse an invite to another community than the home is in.

    Raises:
        StationError: It would not be used.
    """
    if (trouble := _late(joined(home), invite)) is not None:
        raise StationError(trouble, where=str(home), mend=_MEND)


def unused(communities: Collection[str], invite: Invite) -> PartReport | None:
    """How an invite in the settings stands, where the node is in other communities already."""
    trouble = _late({display_id(each) for each in communities}, invite)
    if trouble is None:
        return None
    return PartReport("invite", "not used", f"{trouble}; {_MEND}", is_well=False)


def _late(known: Collection[str], invite: Invite) -> str | None:
    if not known or display_id(invite.community_id) in known:
        return None
    return (
        f"the invite to {invite.community_name!r} is for a first start, and this home is in a "
        f"community already ({', '.join(sorted(known))})"
    )
