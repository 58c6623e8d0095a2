"""Contracts that stand together: the union of one lineage's digests, and no subject owned twice.

`union` says what the active digests of one contract id offer as one, or why they may not be active
together; `collisions` says which surfaces of any contracts want the same subject. Neither knows
about offers, deployments or time: which contracts are active is the caller's to say.
"""

from accord.contracts.effective.collisions import collisions
from accord.contracts.effective.union import RULES, Effective, union

__all__ = [
    "RULES",
    "Effective",
    "collisions",
    "union",
]
