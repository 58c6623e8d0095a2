"""The rules by which surfaces become permissions, as data: for those who use, for those who own.

The analysis of a contract lists the same rules. They say nothing about who holds what.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from accord.contracts.subjects import control_subject
from accord.contracts.surface import Section, Surface
from accord.kernel.finding import pointer

Permission = Literal["publish", "subscribe"]

UPLOAD: Final = "transfer.v1.upload"
DOWNLOAD: Final = "transfer.v1.download"


@dataclass(frozen=True, slots=True)
class SurfaceRule:
    """One permission that a surface gives.

    Attributes:
        id: Stable, and what a reason names.
        category: The kind of permission, as an analysis names it.
        purpose: What it is for, as the middle of a sentence.
        section: The surfaces that it speaks of.
        permission: What is given.
        subject: On which subject, if any, from the surface and the session's prefix.
        selector: The list of a use that selects the surface; empty for the owner.
        gate: The action whose capabilities are asked for; empty for the owner.
        member: The member of the surface that declares it, where the surface alone does not.
    """

    id: str
    category: str
    purpose: str
    section: Section
    permission: Permission
    subject: Callable[[Surface, str], str | None]
    selector: str = ""
    gate: str = ""
    member: str | None = None

    def pointer(self, surface: Surface) -> str:
        """Where a surface declares it."""
        path = (surface.section, surface.name)
        return pointer(*path) if self.member is None else pointer(*path, self.member)


def _itself(surface: Surface, _: str) -> str:
    return surface.subject


def _control(surface: Surface, _: str) -> str:
    return control_subject(surface.subject)


def _transferred(
    subject: str, direction: str, *, owned: bool
) -> Callable[[Surface, str], str | None]:
    """Callers do not know which session of a service answers; a service has its own subjects."""

    def scoped(surface: Surface, prefix: str) -> str | None:
        if surface.transfer != direction:
            return None
        return f"{subject}.{prefix if owned else '*'}.*"

    return scoped


_uploads: Final = _transferred(UPLOAD, "send", owned=False)
_downloads: Final = _transferred(DOWNLOAD, "receive", owned=False)
_own_uploads: Final = _transferred(UPLOAD, "send", owned=True)
_own_downloads: Final = _transferred(DOWNLOAD, "receive", owned=True)

# fmt: off
USED: Final = (
    SurfaceRule("use.rpc.call", "rpc:call", "calls the RPC",
                "rpc", "publish", _itself, "call", "call"),
    SurfaceRule("use.rpc.download", "transfer:download", "receives files of the RPC",
                "rpc", "subscribe", _downloads, "call", "call"),
    SurfaceRule("use.operation.call", "operation:call", "starts the operation",
                "operations", "publish", _itself, "call", "call"),
    SurfaceRule("use.operation.observe", "operation:control", "observes the operation",
                "operations", "publish", _control, "call", "observe"),
    SurfaceRule("use.operation.cancel", "operation:control", "cancels the operation",
                "operations", "publish", _control, "call", "cancel"),
    SurfaceRule("use.operation.signal", "operation:control", "sends signals to the operation",
                "operations", "publish", _control, "call", "control"),
    SurfaceRule("use.operation.upload", "transfer:upload", "sends files to the operation",
                "operations", "publish", _uploads, "call", "call"),
    SurfaceRule("use.event.publish", "event:publish", "publishes the event",
                "events", "publish", _itself, "publish", "publish"),
    SurfaceRule("use.event.subscribe", "event:subscribe", "subscribes to the event",
                "events", "subscribe", _itself, "subscribe", "subscribe"),
    SurfaceRule("use.feed.subscribe", "feed:subscribe", "asks for the feed",
                "feeds", "publish", _itself, "subscribe", "subscribe"),
)
"""What the use of a surface gives to a session that holds the capabilities."""

OWNED: Final = (
    SurfaceRule("own.rpc.handle", "rpc:handle", "answers the RPC",
                "rpc", "subscribe", _itself),
    SurfaceRule("own.rpc.download", "transfer:handle", "takes requests for files of the RPC",
                "rpc", "subscribe", _own_downloads, member="transfer"),
    SurfaceRule("own.rpc.send", "transfer:handle", "sends files of the RPC",
                "rpc", "publish", _own_downloads, member="transfer"),
    SurfaceRule("own.operation.handle", "operation:handle", "runs the operation",
                "operations", "subscribe", _itself),
    SurfaceRule("own.operation.control", "operation:control", "takes control frames of",
                "operations", "subscribe", _control),
    SurfaceRule("own.operation.upload", "transfer:handle", "takes files for the operation",
                "operations", "subscribe", _own_uploads, member="transfer"),
    SurfaceRule("own.event.publish", "event:publish", "publishes the event",
                "events", "publish", _itself),
    SurfaceRule("own.feed.handle", "feed:handle", "serves the feed",
                "feeds", "subscribe", _itself),
)
"""What owning a surface gives to the service."""
# fmt: on
