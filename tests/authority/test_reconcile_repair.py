"""The loop that keeps everything as it is desired."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Self

from accord.authority.reconcile import RepairLoop
from accord.authority.revisions import ChangeSignal
from accord.authority.rules import (
    AuthorityError,
    Code,
    Deployment,
    DeploymentKind,
    Materialized,
    MaterialState,
)
from accord.testing import run_virtual


class Roll:
    """Deployments, of which some are not reconciled; its own `deployments`."""

    def __init__(self, *names: str) -> None:
        self.changes = ChangeSignal()
        self.known = {name: Deployment(name, DeploymentKind.SERVICE) for name in names}
        self.open = set(names)

    @property
    def deployments(self) -> Self:
        return self

    async def get(self, deployment: str) -> Deployment:
        return self.known[deployment]

    async def all(self) -> Sequence[Deployment]:
        return list(self.known.values())

    async def unreconciled(self) -> Sequence[str]:
        return sorted(self.open)


class Reconciler:
    """Writes down what it is asked."""

    def __init__(self, roll: Roll) -> None:
        self._roll = roll
        self.asked: list[str] = []
        self.failing: set[str] = set()
        self.is_away = False

    async def prepare(self) -> None:
        self.asked.append("platform")
        if self.is_away:
            raise AuthorityError(Code.UNAVAILABLE, "the server is away")

    async def reconcile(self, deployment: str) -> Materialized:
        self.asked.append(deployment)
        if self.is_away:
            raise AuthorityError(Code.UNAVAILABLE, "the server is away")
        if deployment == "deleted":
            raise AuthorityError(Code.NOT_FOUND, "there is no such deployment")
        if deployment in self.failing:
            return Materialized(deployment, 1, MaterialState.FAILED)
        self._roll.open.discard(deployment)
        return Materialized(deployment, 1, MaterialState.CURRENT)


def running(*names: str, then: Callable[[Roll, Reconciler], Awaitable[None]]) -> list[str]:
    """What is asked of the reconciler while something happens."""

    async def main() -> list[str]:
        roll = Roll(*names)
        reconciler = Reconciler(roll)
        loop = asyncio.create_task(RepairLoop(reconciler, roll, seconds=30).run())  # type: ignore[arg-type]
        await asyncio.sleep(1)
        await then(roll, reconciler)
        loop.cancel()
        await asyncio.wait({loop})
        return reconciler.asked

    return run_virtual(main())


async def nothing(_: Roll, __: Reconciler) -> None:
    await asyncio.sleep(0)


def test_everything_is_looked_at_first() -> None:
    assert running("a", "b", then=nothing) == ["platform", "a", "b"]


def test_a_change_is_reconciled_at_once_and_alone() -> None:
    async def then(roll: Roll, _: Reconciler) -> None:
        roll.open.add("b")
        roll.changes.fire()
        await asyncio.sleep(0.1)

    assert running("a", "b", then=then) == ["platform", "a", "b", "b"]


def test_everything_is_looked_at_again_now_and_then() -> None:
    async def then(_: Roll, __: Reconciler) -> None:
        await asyncio.sleep(60)

    assert running("a", then=then) == ["platform", "a"] * 3


def test_one_that_fails_holds_up_no_other_and_is_tried_again_when_it_changes() -> None:
    async def then(roll: Roll, reconciler: Reconciler) -> None:
        reconciler.failing.add("a")
        roll.open = {"a", "b"}
        for _ in range(3):
            roll.changes.fire()
            await asyncio.sleep(0.1)
        assert reconciler.asked[4:] == ["a", "b"]
        roll.known["a"] = Deployment("a", DeploymentKind.SERVICE, version=2)
        roll.changes.fire()
        await asyncio.sleep(0.1)
        assert reconciler.asked[6:] == ["a"]
        reconciler.failing.clear()
        await asyncio.sleep(30)

    assert running("a", "b", "deleted", then=then)[-4:] == ["platform", "a", "b", "deleted"]


def test_a_server_that_is_away_is_asked_again_soon() -> None:
    async def then(_: Roll, reconciler: Reconciler) -> None:
        reconciler.is_away = True
        await asyncio.sleep(33)
        reconciler.is_away = False
        await asyncio.sleep(2)

    asked = running("a", then=then)
    assert asked == ["platform", "a", "platform", "platform", "platform", "a"]
