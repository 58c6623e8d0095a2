"""The fold: whether each event of a log may stand, why, and what they all come to. Pure.

The same set of events, in whatever order and however often it arrives, gives the same verdicts and
byte-identical state. docs/concepts/fold.md walks through the stages.
"""

from accord.community.fold.folding import Folded, fold, fold_events
from accord.community.fold.history import History, Link, Memory
from accord.community.fold.reading import state_from
from accord.community.fold.replay import Advance, Replay
from accord.community.fold.snapshots import NeedsHistoryError
from accord.community.fold.state import State, state_bytes, state_object
from accord.community.fold.verdicts import ACCEPTED, VERDICTS, Status, Verdict

__all__ = [
    "ACCEPTED",
    "VERDICTS",
    "Advance",
    "Folded",
    "History",
    "Link",
    "Memory",
    "NeedsHistoryError",
    "Replay",
    "State",
    "Status",
    "Verdict",
    "fold",
    "fold_events",
    "state_bytes",
    "state_from",
    "state_object",
]
