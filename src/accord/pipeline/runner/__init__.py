"""The runner: brings the tables up to what has landed, and publishes what is accounted for.

A run admits whole segments, lets the three append-only layers catch up, counts every record, builds
gold beside what is published and swaps one name. It may be killed at any moment; the next run goes
on from there. Nothing here knows what a table means.
"""

from accord.pipeline.runner.outcome import Outcome
from accord.pipeline.runner.publishing import Version, reading
from accord.pipeline.runner.running import prepare, run

__all__ = ["Outcome", "Version", "prepare", "reading", "run"]
