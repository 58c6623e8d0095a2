"""Reconciliation: accepted resources become buckets, stores, consumers and queues on JetStream."""

from accord.authority.reconcile.jetstream import JetStream, JetStreamError
from accord.authority.reconcile.reconciler import Reconciler, RepairLoop
from accord.authority.rules.desired import DesiredResources, desired_resources
from accord.authority.rules.resources import (
    NamePrefix,
    StreamRetention,
    physical_name,
    platform_resources,
)
from accord.authority.rules.steps import ReconcilePlan, ReconcileStep, plan_steps

__all__ = [
    "DesiredResources",
    "JetStream",
    "JetStreamError",
    "NamePrefix",
    "ReconcilePlan",
    "ReconcileStep",
    "Reconciler",
    "RepairLoop",
    "StreamRetention",
    "desired_resources",
    "physical_name",
    "plan_steps",
    "platform_resources",
]
