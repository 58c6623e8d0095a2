"""The registry: versions that accept nothing, what is live, who uses what, and tokens."""

from pathlib import Path
from typing import Any

import pytest

from accord.authority.registry import RegistryLimits
from accord.authority.rules import AuthorityError, Code
from accord.authority.service import open_authority
from accord.contracts import digest
from accord.kernel import canonical
from accord.kernel.identifiers import UlidSource
from accord.testing import VirtualClock


def graph(contracts: Any, *names: str, **sections: Any) -> dict[str, Any]:
    surfaces: dict[str, Any] = {}
    for name in names:
        surfaces |= contracts.rpc(name)
    made: dict[str, Any] = contracts.contract("graph", rpc=surfaces, **sections)
    return made


async def push(world: Any, manifest: dict[str, Any], by: str = "ann") -> tuple[int, bool]:
    version, is_new = await world.authority.registry.push(canonical.encode(manifest), by)
    return version.number, is_new


async def names(world: Any, which: str, contract: str = "graph@v1") -> list[str]:
    return [each.name for each in await world.authority.registry.select(contract, which)]


async def test_pushing_numbers_versions_and_accepts_nothing(world: Any, contracts: Any) -> None:
    first, second = graph(contracts, "Find"), graph(contracts, "Find", "Count")
    assert await push(world, first) == (1, True)
    assert await push(world, first) == (1, False)
    assert await push(world, second) == (2, True)
    assert await push(world, first) == (3, True), "going back is a version, too"
    assert await world.authority.deployments.all() == []
    assert await world.authority.plans.all() == []
    found = await world.authority.registry.find("graph@v1", 2)
    assert (found.digest, found.by) == (digest(second), "ann")
    assert await world.authority.registry.manifest(found.digest) == second
    last = await world.authority.registry.contracts()
    assert [(each.contract_id, each.number) for each in last] == [("graph@v1", 3)]


async def test_what_was_never_pushed_is_not_found(world: Any) -> None:
    with pytest.raises(AuthorityError) as caught:
        await world.authority.registry.find("graph@v1", None)
    assert caught.value.code is Code.NOT_FOUND
    assert await names(world, "live") == []


async def test_an_invalid_contract_and_one_of_the_platform_are_refused(
    world: Any, contracts: Any, builtins: Any
) -> None:
    for manifest, code in (
        ({**graph(contracts, "Find"), "rpc": 1}, Code.INVALID_CONTRACT),
        (builtins["trellis.core@v1"], Code.CONFLICT),
    ):
        with pytest.raises(AuthorityError) as caught:
            await push(world, manifest)
        assert caught.value.code is code
    assert await world.authority.registry.contracts() == []


async def test_live_versions_are_those_that_somebody_relies_on(world: Any, contracts: Any) -> None:
    steps = [graph(contracts, "Find", *"ABCD"[:n]) for n in range(4)]
    unregistered = graph(contracts, "Find", "A", "Odd")
    for step in steps:
        await push(world, step)
    await world.deploy("one", steps[1])
    await world.deploy("two", unregistered)
    assert await names(world, "latest") == ["version 4"]
    assert await names(world, "live") == [
        "version 4",
        "version 2, accepted for one; offered by one",
        "unregistered version, accepted for two; offered by two",
    ]
    assert len(await names(world, "all")) == 5
    active = await world.authority.registry.select("graph@v1", "catalog")
    assert {each.digest for each in active} == {digest(steps[1]), digest(unregistered)}


async def test_users_are_told_with_the_surfaces_that_they_use(world: Any, contracts: Any) -> None:
    await world.deploy("graph", graph(contracts, "Find", "Count"))
    uses = contracts.uses("required", "graph", rpc={"call": ["Find"]})
    await world.deploy("report", contracts.contract("report", uses=uses))
    found = await world.authority.registry.users("graph@v1")
    assert [(each.name, each.role, sorted(each.surfaces), each.live) for each in found] == [
        ("graph", "implements", [], 1),
        ("report", "uses", [("rpc", "Find")], 1),
    ]
    assert await world.authority.registry.users("paper@v1") == []


async def test_the_log_of_a_contract_has_pushes_and_decisions_of_it_alone(
    world: Any, contracts: Any
) -> None:
    await push(world, graph(contracts, "Find"), by="ci")
    await push(world, contracts.contract("paper"))
    await world.deploy("graph", graph(contracts, "Find"))
    log = await world.authority.registry.log("graph@v1")
    acts = [(each.act.act, each.act.by) for each in log]
    assert acts[0] == ("pushed", "ci")
    assert {"presented", "accepted", "offered"} <= {act for act, _ in acts}
    assert {each.act.contract_id for each in log} == {"graph@v1"}


async def test_a_damaged_manifest_is_told_and_mended_by_pushing_it_again(
    world: Any, contracts: Any
) -> None:
    manifest = graph(contracts, "Find")
    await push(world, manifest)
    named = digest(manifest)

    def drop(connection: Any) -> None:
        connection.exec_driver_sql("UPDATE contracts SET manifest = '{}'")

    await world.authority.store.write(drop)
    world.authority.manifests._forget((named,))
    with pytest.raises(AuthorityError) as caught:
        await world.authority.registry.manifest(named)
    assert caught.value.code is Code.MANIFEST_REQUIRED
    assert await push(world, manifest) == (1, False)
    assert await world.authority.registry.manifest(named) == manifest


async def test_a_full_registry_refuses_and_keeps_nothing(
    tmp_path: Path, clock: VirtualClock, builtins: Any, contracts: Any, make_world: Any
) -> None:
    limits = RegistryLimits(contracts=1, versions=2)
    async with open_authority(
        tmp_path, clock, UlidSource(clock), builtins, round_seconds=None, limits=limits
    ) as authority:
        world = make_world(authority)
        for step in range(2):
            await push(world, graph(contracts, "Find", *"AB"[:step]))
        for manifest in (graph(contracts, "Find", "C"), contracts.contract("paper")):
            with pytest.raises(AuthorityError) as caught:
                await push(world, manifest)
            assert caught.value.code is Code.CONFLICT
            assert "raise [authority] registry_" in str(caught.value)
            assert await authority.manifests.get(digest(manifest)) is None
        assert await push(world, graph(contracts, "Find", "A")) == (2, False)


async def test_versions_are_there_after_a_restart(
    tmp_path: Path, clock: VirtualClock, builtins: Any, contracts: Any, make_world: Any
) -> None:
    for step in range(2):
        async with open_authority(
            tmp_path, clock, UlidSource(clock), builtins, round_seconds=None
        ) as authority:
            manifest = graph(contracts, "Find", *"A"[:step])
            assert await push(make_world(authority), manifest) == (step + 1, True)


async def test_a_token_is_good_for_what_it_was_made_for_until_it_ends(
    world: Any, clock: VirtualClock
) -> None:
    tokens = world.authority.registry.tokens
    reads, secret = await tokens.mint("ci", "ann", seconds=60, may_push=False)
    pushes, other = await tokens.mint("release", "ann", seconds=600, may_push=True)
    assert await tokens.authenticate(secret) == reads
    assert reads.allows("registry/pull")
    assert not reads.allows("registry/push")
    assert pushes.allows("registry/push")
    for verb in ("registry/tokens/add", "plans/accept", "deploy", "status", "catalog"):
        assert not pushes.allows(verb)
    with pytest.raises(AuthorityError):
        await tokens.mint("ci", "ann", seconds=60, may_push=True)
    for wrong in (
        "",
        "registry_x",
        secret[:-1] + ("A" if secret[-1] != "A" else "B"),
        f"{secret}x",
    ):
        assert await tokens.authenticate(wrong) is None
    clock.advance(61)
    assert await tokens.authenticate(secret) is None
    assert await tokens.revoke("release", "ann") == 1
    assert await tokens.authenticate(other) is None
    with pytest.raises(AuthorityError):
        await tokens.revoke("release", "ann")
    acts = [each.act.act for each in await world.authority.revisions.history()]
    assert acts.count("registry_token_added") == 2
