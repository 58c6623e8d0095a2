"""Reconciliation: what was accepted becomes buckets, stores, consumers and queues on JetStream.

`desired` says what a deployment needs, `steps` what is to be done about what is seen; both are
pure. `reconciler` does it, through `jetstream`; `repair` does it for everybody, for ever.
"""

from accord.authority.reconcile.desired import Wanted, wanted
from accord.authority.reconcile.jetstream import JetStream, RefusedError
from accord.authority.reconcile.names import Prefix, physical
from accord.authority.reconcile.platform import Keeping, platform
from accord.authority.reconcile.reconciler import Ledger, Reconciler
from accord.authority.reconcile.steps import Plan, Step, plan

__all__ = [
    "JetStream",
    "Keeping",
    "Ledger",
    "Plan",
    "Prefix",
    "Reconciler",
    "RefusedError",
    "Step",
    "Wanted",
    "physical",
    "plan",
    "platform",
    "wanted",
]
