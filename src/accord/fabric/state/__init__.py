"""State: what a contract declares as its own, one value or a map, in versions.

`StateValue` and `StateMap` keep it with the authority. Values written under an older version are
carried over by the migrations that the program gives.
"""

from accord.fabric.state.entry import Entry, Migration
from accord.fabric.state.stores import StateMap, StateValue

__all__ = ["Entry", "Migration", "StateMap", "StateValue"]
