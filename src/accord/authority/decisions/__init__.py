"""What the authority decides: facts come in, a value that explains itself goes out.

`needs` says what a contract asks for, `classify` how far that goes beyond what was accepted,
`liveness` whether an offer still counts, `catalog` what is active, and `surface_status` whether one
session may use one surface now. Nothing here reads a store, a clock or the network.
"""

from accord.authority.decisions.catalog import Active, Projection, project
from accord.authority.decisions.classify import Blocker, Facts, Proposal, classify
from accord.authority.decisions.liveness import GRACE, HEARTBEAT, Liveness, liveness
from accord.authority.decisions.needs import Needs, needs, surface_key
from accord.authority.decisions.ownership import Ownership
from accord.authority.decisions.surface_status import SurfaceStatus, surface_status

__all__ = [
    "GRACE",
    "HEARTBEAT",
    "Active",
    "Blocker",
    "Facts",
    "Liveness",
    "Needs",
    "Ownership",
    "Projection",
    "Proposal",
    "SurfaceStatus",
    "classify",
    "liveness",
    "needs",
    "project",
    "surface_key",
    "surface_status",
]
