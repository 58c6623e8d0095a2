"""What the tests of reconciliation share: a ledger in memory or in a file, and two versions."""

import dataclasses
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, cast

from nats.aio.client import Client

from accord.authority.reconcile import JetStream
from accord.authority.rules import ATTEMPT, Deployment, DeploymentKind, Desired, Materialized
from accord.authority.service import Authority

CONTRACT = "shop@v1"
MANIFEST: Mapping[str, Any] = {"id": CONTRACT, "operations": {"Shop.Close": {}}}

KV = {"purpose": "carts", "schema": {"schema": "Cart"}, "history": 3, "ttlMs": 0}
STORE = {"purpose": "scans", "ttlMs": 86_400_000, "maxTotalBytes": 1 << 20, "maxObjectBytes": 999}
JOB = {
    "payload": {"schema": "Cart"},
    "maxDeliver": 5,
    "backoffMs": [5000, 30000, 120000, 600000, 1800000],
    "ackWaitMs": 300000,
    "progress": True,
    "logs": True,
    "dlq": True,
    "concurrency": 1,
}
KEYED = {**JOB, "keyConcurrency": {"key": ["shop", "/id"]}, "queue": {"maxQueuedPerKey": 2}}
GROUP = {
    "self": ["Shop.Opened"],
    "replay": "new",
    "ordering": "strict",
    "concurrency": 1,
    "filters": ["events.v1.Shop.Opened"],
}


def deployment(name: str = "shop-prod", version: int = 1, **resources: Any) -> Deployment:
    """A deployment with everything, or with some resources (`kv_carts={...}`) instead."""
    chosen = resources or {
        "kv_carts": KV,
        "kv_prices": {**KV, "ttlMs": 3_600_000, "maxValueBytes": 1000},
        "store_scans": STORE,
        "consumer_audit": GROUP,
        "job_refund": JOB,
        "job_sync": KEYED,
    }
    keyed = {
        (kind, CONTRACT, alias): descriptor
        for (kind, _, alias), descriptor in (
            (key.partition("_"), value) for key, value in chosen.items()
        )
    }
    desired = Desired(contracts={CONTRACT: "digest"}, resources=keyed)
    return Deployment(name, DeploymentKind.SERVICE, desired=desired, version=version)


class MemoryManifests:
    """One contract, whatever the digest."""

    def __init__(self) -> None:
        self.manifest: Mapping[str, Any] | None = MANIFEST

    async def get(self, _: str) -> Mapping[str, Any] | None:
        return self.manifest


class MemoryLedger:
    """The records of the authority that reconciliation reads; its own `deployments`."""

    def __init__(self, *deployments: Deployment) -> None:
        self.known = {each.id: each for each in deployments}
        self.records: dict[str, Materialized] = {}
        self.manifests = MemoryManifests()

    def as_authority(self) -> Authority:
        """Itself, where a whole authority is expected."""
        return cast("Authority", self)

    @property
    def deployments(self) -> Self:
        return self

    async def get(self, deployment: str) -> Deployment:
        return self.known[deployment]

    async def materialized(self, deployment: str) -> Materialized | None:
        return self.records.get(deployment)

    async def materialize(self, record: Materialized) -> bool:
        if self.known[record.deployment].version != record.version:
            return False
        self.records[record.deployment] = record
        return True

    def desire(self, changed: Deployment) -> None:
        """Accept something else, at the next version."""
        version = self.known[changed.id].version + 1
        self.known[changed.id] = dataclasses.replace(changed, version=version)


class FileLedger(MemoryLedger):
    """The same, kept in a file that a killed process leaves whole."""

    def __init__(self, path: Path, *deployments: Deployment) -> None:
        super().__init__(*deployments)
        self._path = path
        if path.exists():
            self.records = pickle.loads(path.read_bytes())

    async def materialize(self, record: Materialized) -> bool:
        if not await super().materialize(record):
            return False
        beside = self._path.with_suffix(".new")
        beside.write_bytes(pickle.dumps(self.records))
        beside.replace(self._path)
        return True


class KilledError(BaseException):
    """Stands for the end of the process."""


class Mortal:
    """Counts what changes something, and ends everything at one of those moments.

    Args:
        at: The moment, counted from 0.
        after: Whether the change still happens.
    """

    def __init__(self, at: int | None = None, *, after: bool = False) -> None:
        self.count = 0
        self._at = at
        self._after = after
        self._dead = False

    def enter(self, *, changes: bool) -> bool:
        """Whether the end comes right after; raises where it comes before, or came already."""
        now = changes and self.count == self._at
        self.count += changes
        if self._dead or (now and not self._after):
            self._dead = True
            raise KilledError
        return now

    def die(self) -> None:
        self._dead = True
        raise KilledError


class MortalJetStream(JetStream):
    """JetStream for a process that ends at a chosen moment."""

    def __init__(self, connection: Client, mortal: Mortal) -> None:
        super().__init__(connection)
        self._mortal = mortal

    async def ask(self, subject: str, payload: Mapping[str, Any] | None = None) -> dict[str, Any]:
        changes = any(verb in subject for verb in (".CREATE.", ".UPDATE.", ".DELETE."))
        last = self._mortal.enter(changes=changes)
        answer = await super().ask(subject, payload)
        if last:
            self._mortal.die()
        return answer


class MortalLedger(MemoryLedger):
    """The ledger of a process that ends at a chosen moment; `share` is what survives it."""

    def __init__(self, share: MemoryLedger, mortal: Mortal) -> None:
        super().__init__()
        self.known, self.records = share.known, share.records
        self._mortal = mortal

    async def materialize(self, record: Materialized) -> bool:
        last = self._mortal.enter(changes=True)
        stored = await super().materialize(record)
        if last:
            self._mortal.die()
        return stored


async def everything(jetstream: JetStream) -> dict[str, Any]:
    """Every stream and consumer of the account, without what differs from run to run."""
    found: dict[str, Any] = {}
    listed = await jetstream.ask("STREAM.LIST", {})
    assert listed["total"] <= 256
    for stream in listed["streams"] or ():
        name = stream["config"]["name"]
        found[name] = _told(stream)
        consumers = await jetstream.ask(f"CONSUMER.LIST.{name}", {})
        found |= {f"{name} {each['name']}": _told(each) for each in consumers["consumers"] or ()}
    return found


def _told(it: Mapping[str, Any]) -> dict[str, Any]:
    config = {**it["config"], "metadata": {**it["config"]["metadata"]}}
    config["metadata"].pop(ATTEMPT, None)
    return config
