"""What is measured: one table of every metric, and the families that are made from it.

A plane counts in plain numbers and shows them by `family` and `histogram`, which know the table: a
name that is not in it cannot be shown. Nothing here counts, listens or knows a plane.
"""

from accord.metering.durations import Durations
from accord.metering.families import family, histogram
from accord.metering.table import METRICS, Kind, Measure

__all__ = ["METRICS", "Durations", "Kind", "Measure", "family", "histogram"]
