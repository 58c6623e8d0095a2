"""Logs become equal: what a node answers, and what it asks when it meets another.

`holdings` knows what a log has, `meeting` reconciles with one other node, `routes` answers those
who do. Whose turn it is to meet is the node's to say.
"""

from accord.community.sync.holdings import Holdings
from accord.community.sync.meeting import Met, meet
from accord.community.sync.routes import Admission, sync_routes

__all__ = ["Admission", "Holdings", "Met", "meet", "sync_routes"]
