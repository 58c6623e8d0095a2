"""The communities of a home: unused invites, lost logs and restored logs."""

import time
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path

from accord.community.communities import CommunityFolders
from accord.community.rules.formats import display_id
from accord.community.rules.invites import Invite
from accord.kernel.files import sync_folder
from accord.station.errors import StationError
from accord.station.home import Home, hold_home
from accord.station.plane import PartReport
from accord.station.settings import Settings, home_option
from accord.station.store import store_location
from accord.storage import StoreError, check

_MEND = (
    "start without the invite, then `accord community join LINK` joins another one beside it; or "
    "name another home"
)


def joined_communities(home: Path) -> frozenset[str]:
    """Return the display ids of the communities in which a home's node has signed."""
    return CommunityFolders(home).joined()


def refuse_late_invite(home: Path, invite: Invite) -> None:
    """Raise `StationError` for an invite to another community than the home is in."""
    if (trouble := _late_reason(joined_communities(home), invite)) is not None:
        raise StationError(trouble, where=str(home), mend=_MEND)


def report_unused_invite(communities: Collection[str], invite: Invite) -> PartReport | None:
    """Report an invite in the settings that is unused because the node is in a community."""
    trouble = _late_reason({display_id(each) for each in communities}, invite)
    if trouble is None:
        return None
    return PartReport("invite", "not used", f"{trouble}; {_MEND}", is_well=False)


def report_lost(home: Path, names: Sequence[str]) -> list[PartReport]:
    """Report communities, by display id, whose log is missing although this home has signed."""
    option = home_option(home)
    return [
        PartReport(
            f"community {name}",
            "lost",
            "this home has signed in this community, and its log is not here; nothing is founded "
            "in its place. Restore a backup with `accord restore`, or fetch the log from another "
            f"member with `accord community recover --community {name} --peer ADDRESS{option}`",
            is_well=False,
        )
        for name in names
    ]


def report_restored(home: Path, name: str, community_id: str) -> PartReport:
    """Report a community whose log was restored and in which nothing can be signed yet."""
    short = display_id(community_id)
    return PartReport(
        f"community {short}",
        "restored",
        f"{name!r} cannot be written to yet: this node may have signed more after its backup. It "
        "goes on by itself once another member was met; if there is none, "
        f"`accord community recover --alone --community {short}{home_option(home)}` settles it",
        is_well=False,
    )


def explain_damaged_log(home: Path, error: StoreError) -> StationError:
    """Return the error for a damaged log, which must not be replaced by a new one."""
    return StationError(
        error.what,
        where=error.where,
        mend="stop the station; then restore a backup with `accord restore`, or, where another "
        "member has the log, fetch it with "
        f"`accord community recover --set-aside --peer ADDRESS{home_option(home)}`",
    )


def set_log_aside(settings: Settings) -> Path:
    """Move a damaged log of a stopped station away, and return its new folder.

    Raises:
        HomeHeldError: A station runs here.
        StationError: The log is not damaged, or is not in a file.
    """
    from accord.community.store import COMMUNITY_STORE
    from accord.storage.location import locate

    file = locate(store_location(settings), COMMUNITY_STORE).file
    if file is None or not file.exists():
        raise StationError(
            "there is no file with a log to set aside",
            where=str(settings.home),
            mend="leave out --set-aside",
        )
    with ExitStack() as undo, hold_home(Home(settings.home), "no address: it is mended", undo):
        undo.pop_all()
        try:
            sound = check(store_location(settings), COMMUNITY_STORE).ok
        except StoreError:
            sound = False
        if sound:
            raise StationError("the log is sound", where=str(file), mend="leave out --set-aside")
        folder = file.parent / f"damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}"
        folder.mkdir(mode=0o700)
        for each in file.parent.glob(f"{file.name}*"):
            each.rename(folder / each.name)
        sync_folder(folder)
        sync_folder(file.parent)
    return folder


def _late_reason(known: Collection[str], invite: Invite) -> str | None:
    if not known or display_id(invite.community_id) in known:
        return None
    return (
        f"the invite to {invite.community_name!r} is for a first start, and this home is in a "
        f"community already ({', '.join(sorted(known))})"
    )
