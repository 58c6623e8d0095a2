"""Grants come from declarations, all of them and nothing else."""

import copy
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fakes.strategies import manifests

from accord.contracts import Bindings, Grants, SessionRole, grants, resolve_uses, union, validate
from accord.contracts.permissions import ConsumerBinding, QueueBinding
from accord.contracts.surfaces import wildcard
from accord.kernel.canonical import pointer

KEY = "SESSION-KEY_0123456789"
PREFIX = "SESSION-KEY_0123"
SELECTORS = (
    ("rpc", "call"),
    ("operations", "call"),
    ("events", "publish"),
    ("events", "subscribe"),
    ("feeds", "subscribe"),
)
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Scene:
    """A contract among others, and a session that presents it."""

    contract: dict[str, Any]
    others: dict[str, dict[str, Any]]
    capabilities: frozenset[str]
    bindings: Bindings
    role: SessionRole

    def grants(self, contract: dict[str, Any] | None = None) -> Grants:
        presented = contract or self.contract
        active = {identity: union([other]) for identity, other in self.others.items()}
        return grants(
            presented,
            role=self.role,
            resolution=resolve_uses(presented, active),
            capabilities=self.capabilities,
            bindings=self.bindings,
            session_key=KEY,
        )


@st.composite
def scenes(draw: st.DrawFn) -> Scene:
    contract = draw(manifests(surfaces=2))
    others = {}
    for other in draw(st.lists(manifests(surfaces=2), min_size=1, max_size=2)):
        if other["id"] != contract["id"]:
            others[other["id"]] = other
    contract["uses"] = {"required": {}, "optional": {}}
    for alias in draw(st.lists(st.sampled_from("abc"), max_size=3, unique=True)):
        if others:
            group = draw(st.sampled_from(("required", "optional")))
            contract["uses"][group][alias] = draw(_use(others, group))
    contract["eventConsumers"] = draw(_consumers(contract))
    lists = [
        names
        for other in others.values()
        for section in ("rpc", "operations", "events", "feeds")
        for surface in other.get(section, {}).values()
        for names in surface.get("capabilities", {}).values()
    ]
    known = sorted({name for names in lists for name in names}) or ["none"]
    return Scene(
        contract,
        others,
        frozenset(draw(st.lists(st.sampled_from(known)))),
        draw(_bindings(contract)),
        draw(st.sampled_from(SessionRole)),
    )


@st.composite
def _use(draw: st.DrawFn, others: dict[str, Any], group: str) -> dict[str, Any]:
    identity = draw(st.sampled_from(sorted(others)))
    if group == "optional" and draw(st.integers(0, 3)) == 0:
        return {"contract": "absent@v1", "rpc": {"call": ["Nothing"]}}
    use: dict[str, Any] = {"contract": identity}
    for section, action in SELECTORS:
        names = [*others[identity].get(section, {}), *(["Absent"] if group == "optional" else [])]
        if names:
            chosen = draw(st.lists(st.sampled_from(names), max_size=3))
            use.setdefault(section, {})[action] = chosen
    return use


@st.composite
def _consumers(draw: st.DrawFn, contract: dict[str, Any]) -> dict[str, Any]:
    groups = {}
    for name in draw(st.lists(st.sampled_from(("one", "two")), unique=True)):
        group: dict[str, Any] = {"self": sorted(contract.get("events", {}))[:1], "uses": {}}
        for aliases in contract["uses"].values():
            for alias, use in aliases.items():
                events = use.get("events", {}).get("subscribe", [])
                if events and draw(st.booleans()):
                    group["uses"][alias] = events[:1]
        if group["self"] or group["uses"]:
            groups[name] = group
    return groups


@st.composite
def _bindings(draw: st.DrawFn, contract: dict[str, Any]) -> Bindings:
    def some(declared: dict[str, Any]) -> list[str]:
        return [name for name in (*declared, "undeclared") if draw(st.booleans())]

    resources = contract.get("resources", {})
    return Bindings(
        kv={name: f"kv-{name}" for name in some(resources.get("kv", {}))},
        store={name: f"os-{name}" for name in some(resources.get("store", {}))},
        consumers={
            name: ConsumerBinding("EVENTS", f"ec-{name}")
            for name in some(contract["eventConsumers"])
        },
        jobs={
            name: QueueBinding(
                "ns", name, f"jq-{name}", key_bucket=draw(st.sampled_from(("keys", None)))
            )
            for name in some(contract.get("jobs", {}))
        },
        operations=draw(st.sampled_from(("records", None))),
    )


def declared(scene: Scene) -> tuple[set[str], set[str]]:
    """What ownership, uses and bindings declare, capabilities aside: publish, and subscribe."""
    publish: set[str] = set()
    subscribe = {f"_INBOX.{PREFIX}.>"}
    for aliases in scene.contract["uses"].values():
        for use in aliases.values():
            other = scene.others.get(use["contract"], {})
            for section, action in SELECTORS:
                for name in use.get(section, {}).get(action, ()):
                    surface = other.get(section, {}).get(name)
                    if surface is None:
                        continue
                    target = subscribe if section == "events" and action == "subscribe" else publish
                    target.add(wildcard(surface["subject"]))
                    if section == "operations":
                        publish.add(f"{surface['subject']}.control")
                    if "transfer" in surface and section == "operations":
                        publish.add("transfer.v1.upload.*.*")
                    if "transfer" in surface and section == "rpc":
                        subscribe.add("transfer.v1.download.*.*")
    if scene.role is SessionRole.SERVICE:
        _add_owned(scene.contract, publish, subscribe)
        _add_bound(scene, publish, subscribe)
    return publish, subscribe


def _add_owned(contract: dict[str, Any], publish: set[str], subscribe: set[str]) -> None:
    for rpc in contract.get("rpc", {}).values():
        subscribe.add(rpc["subject"])
        if "transfer" in rpc:
            subscribe.add(f"transfer.v1.download.{PREFIX}.*")
            publish.add(f"transfer.v1.download.{PREFIX}.*")
    for operation in contract.get("operations", {}).values():
        subscribe |= {operation["subject"], f"{operation['subject']}.control"}
        if "transfer" in operation:
            subscribe.add(f"transfer.v1.upload.{PREFIX}.*")
    publish |= {wildcard(event["subject"]) for event in contract.get("events", {}).values()}
    subscribe |= {feed["subject"] for feed in contract.get("feeds", {}).values()}


def _add_bound(scene: Scene, publish: set[str], subscribe: set[str]) -> None:
    resources = scene.contract.get("resources", {})
    buckets = {n for alias, n in scene.bindings.kv.items() if alias in resources.get("kv", {})}
    stores = {n for alias, n in scene.bindings.store.items() if alias in resources.get("store", {})}
    records = set()
    if scene.contract.get("operations") and scene.bindings.operations is not None:
        records.add(scene.bindings.operations)
        subscribe.add(f"$KV.{scene.bindings.operations}.>")
    places = {
        f"{bound.stream}.{bound.consumer}"
        for group, bound in scene.bindings.consumers.items()
        if group in scene.contract["eventConsumers"]
    }
    for name, queue in scene.bindings.jobs.items():
        job = scene.contract.get("jobs", {}).get(name)
        if job is not None:
            places.add(f"{queue.stream}.{queue.consumer}")
            publish |= {f"trellis.jobs.ns.{name}.>", f"trellis.work.ns.{name}"}
            publish.add(f"$JS.API.DIRECT.GET.JOBS.trellis.jobs.ns.{name}.>")
            subscribe.add(f"trellis.jobs.ns.{name}.>")
            if "keyConcurrency" in job and queue.key_bucket is not None:
                records.add(queue.key_bucket)
    buckets |= records
    publish |= {f"$JS.API.STREAM.PURGE.KV_{name}" for name in records}
    for place in places:
        publish |= {f"$JS.API.CONSUMER.{what}.{place}" for what in ("INFO", "MSG.NEXT")}
        publish.add(f"$JS.ACK.{place}.>")
    streams = {f"KV_{name}" for name in buckets} | {f"OBJ_{name}" for name in stores}
    for stream in streams:
        publish |= {f"$JS.API.{what}.{stream}" for what in ("STREAM.INFO", "STREAM.MSG.GET")}
        publish |= {f"$JS.API.DIRECT.GET.{stream}{tail}" for tail in ("", ".>")}
    publish |= {f"$KV.{name}.>" for name in buckets} | {f"$O.{name}.>" for name in stores}
    publish |= {f"$JS.API.STREAM.PURGE.OBJ_{name}" for name in stores}


@settings(max_examples=30)
@given(scenes())
def test_nothing_is_granted_that_is_not_declared(scene: Scene) -> None:
    assert validate(scene.contract) == []
    granted = scene.grants()
    publish, subscribe = declared(scene)
    assert granted.ok
    assert set(granted.publish) <= publish
    assert set(granted.subscribe) <= subscribe


@settings(max_examples=30)
@given(scenes())
def test_whoever_holds_every_capability_gets_all_that_is_declared(scene: Scene) -> None:
    every = frozenset(
        name
        for other in scene.others.values()
        for section in ("rpc", "operations", "events", "feeds")
        for surface in other.get(section, {}).values()
        for names in surface.get("capabilities", {}).values()
        for name in names
    )
    held = Scene(scene.contract, scene.others, every, scene.bindings, scene.role)
    granted = held.grants()
    publish, subscribe = declared(held)
    assert granted.withheld == ()
    assert set(granted.publish) == publish
    assert set(granted.subscribe) == subscribe


def declarations(contract: dict[str, Any]) -> list[Path]:
    """Everything that can be taken out of a contract and could bear on grants."""
    found: list[Path] = []
    for group, aliases in contract["uses"].items():
        for alias, use in aliases.items():
            found.append(("uses", group, alias))
            for section, action in SELECTORS:
                names = use.get(section, {}).get(action, ())
                found += [("uses", group, alias, section, action, at) for at in range(len(names))]
    for section in ("rpc", "operations", "events", "feeds", "jobs", "eventConsumers"):
        for name, part in contract.get(section, {}).items():
            found.append((section, name))
            found += [(section, name, m) for m in ("transfer", "keyConcurrency") if m in part]
    for kind, aliases in contract.get("resources", {}).items():
        found += [("resources", kind, alias) for alias in aliases]
    return found


def without(contract: dict[str, Any], path: Path) -> dict[str, Any]:
    rest = copy.deepcopy(contract)
    place: Any = rest
    for step in path[:-1]:
        place = place[step]
    del place[path[-1]]
    return rest


def take_one_out(scene: Scene, data: st.DataObject) -> None:
    possible = [
        path for path in declarations(scene.contract) if not validate(without(scene.contract, path))
    ]
    if not possible:
        return
    path = data.draw(st.sampled_from(possible), label="taken out")
    place = pointer(*path)
    before, after = scene.grants(), scene.grants(without(scene.contract, path))
    for had, has in ((before.publish, after.publish), (before.subscribe, after.subscribe)):
        gone = {
            subject
            for subject, reasons in had.items()
            if all(
                reason.pointer == place or reason.pointer.startswith(f"{place}/")
                for reason in reasons
            )
        }
        assert set(has) == set(had) - gone


@settings(max_examples=40)
@given(scenes(), st.data())
def test_a_grant_goes_when_every_reason_for_it_is_taken_out_and_only_then(
    scene: Scene, data: st.DataObject
) -> None:
    take_one_out(scene, data)


@pytest.mark.long
@settings(max_examples=2000)
@given(scenes(), st.data())
def test_a_grant_goes_when_every_reason_for_it_is_taken_out_many_times(
    scene: Scene, data: st.DataObject
) -> None:
    take_one_out(scene, data)


@settings(max_examples=15)
@given(scenes(), st.data())
def test_more_capabilities_never_take_anything_away(scene: Scene, data: st.DataObject) -> None:
    fewer = frozenset(name for name in sorted(scene.capabilities) if data.draw(st.booleans()))
    less = Scene(scene.contract, scene.others, fewer, scene.bindings, scene.role).grants()
    more = scene.grants()
    assert set(less.publish) <= set(more.publish)
    assert set(less.subscribe) <= set(more.subscribe)
