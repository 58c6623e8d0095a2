"""Reconciliation against a real server."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any, cast

import nats
import pytest
from nats.aio.client import Client
from tests.authority.reconcile_cases import (
    CONTRACT,
    GROUP,
    JOB,
    KV,
    STORE,
    MemoryLedger,
    deployment,
    everything,
)

from accord.authority.contracts import builtins
from accord.authority.reconcile import JetStream, JetStreamError, Reconciler
from accord.authority.rules import (
    OWNER,
    TRANSIENT_SUBJECTS,
    AuthorityError,
    Code,
    MaterialState,
    NamePrefix,
    ResourceRef,
    StreamRetention,
    define_stream,
    physical_name,
)
from accord.kernel.clock import SystemClock
from accord.kernel.identifiers import UlidSource
from accord.testing.servers import Server, nats_server

IDS = UlidSource(SystemClock())
CARTS = physical_name(NamePrefix.KV, "shop-prod", CONTRACT, "carts")
SCANS = physical_name(NamePrefix.STORE, "shop-prod", CONTRACT, "scans")
AUDIT = physical_name(NamePrefix.CONSUMER, "shop-prod", CONTRACT, "audit")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with nats_server(jetstream=True) as running:
        yield running


@pytest.fixture
async def connection(server: Server) -> AsyncIterator[Client]:
    client = await nats.connect(server.url)
    yield client
    jetstream = JetStream(client)
    for name in (await jetstream.ask("STREAM.NAMES", {}))["streams"] or ():
        await jetstream.delete(ResourceRef(name))
    await client.close()


@pytest.fixture
def jetstream(connection: Client) -> JetStream:
    return JetStream(connection)


async def reconciler(jetstream: JetStream, ledger: MemoryLedger) -> Reconciler:
    made = Reconciler(jetstream, ledger.as_authority(), IDS)
    await made.prepare()
    return made


async def test_everything_that_is_desired_is_made_and_recorded(
    jetstream: JetStream, connection: Client
) -> None:
    ledger = MemoryLedger(deployment())
    record = await (await reconciler(jetstream, ledger)).reconcile("shop-prod")
    assert record.status is MaterialState.CURRENT
    assert ledger.records["shop-prod"] == record
    bound, settings = record.bindings[CONTRACT], record.settings[CONTRACT]
    js = connection.jetstream()
    carts = await js.key_value(bound.kv["carts"])
    for value in (b"1", b"2", b"3", b"4"):
        await carts.put("a", value)
    assert [entry.value for entry in await carts.history("a")] == [b"2", b"3", b"4"]
    scans = await js.object_store(bound.store["scans"])
    await scans.put("scan", b"x" * 1000)
    assert (await scans.get("scan")).data == b"x" * 1000
    await js.publish("events.v1.Shop.Opened", b"{}")
    group = await js.pull_subscribe_bind(bound.consumers["audit"].consumer, "trellis")
    assert [msg.subject for msg in await group.fetch(1)] == ["events.v1.Shop.Opened"]
    queue = settings["jobs"]["queues"]["sync"]
    await js.publish(queue["workSubject"], b"{}")
    work = await js.pull_subscribe_bind(queue["consumerName"], "JOBS_WORK")
    assert len(await work.fetch(1)) == 1
    await js.key_value(queue["keyBucket"])
    assert bound.operations is not None
    assert bound.operations == settings["operations"]["bucket"]
    await js.key_value(bound.operations)


async def test_a_value_of_exactly_the_declared_size_fits_even_with_a_condition(
    jetstream: JetStream, connection: Client
) -> None:
    ledger = MemoryLedger(deployment())
    record = await (await reconciler(jetstream, ledger)).reconcile("shop-prod")
    prices = await connection.jetstream().key_value(record.bindings[CONTRACT].kv["prices"])
    revision = await prices.put("a", b"1")
    await prices.update("a", b"x" * 1000, last=revision)
    with pytest.raises(nats.js.errors.APIError, match="maximum"):
        await prices.put("a", b"x" * 3000)


async def test_what_is_already_so_is_adopted_and_keeps_its_data(
    jetstream: JetStream, connection: Client
) -> None:
    await (await reconciler(jetstream, MemoryLedger(deployment()))).reconcile("shop-prod")
    await (await connection.jetstream().key_value(CARTS)).put("a", b"kept")
    before = await everything(jetstream)
    ledger = MemoryLedger(deployment())  # one that has forgotten everything
    record = await (await reconciler(jetstream, ledger)).reconcile("shop-prod")
    assert record.status is MaterialState.CURRENT
    assert await everything(jetstream) == before
    assert (await (await connection.jetstream().key_value(CARTS)).get("a")).value == b"kept"


async def test_drift_is_set_right(jetstream: JetStream) -> None:
    made = await reconciler(jetstream, ledger := MemoryLedger(deployment()))
    await made.reconcile("shop-prod")
    before = await everything(jetstream)
    seen = await jetstream.info(ResourceRef(f"KV_{CARTS}"))
    assert seen is not None
    await jetstream.update(
        ResourceRef(f"KV_{CARTS}"), {**seen["config"], "max_msgs_per_subject": 9}
    )
    await jetstream.delete(ResourceRef("trellis", AUDIT))
    await jetstream.delete(ResourceRef(f"OBJ_{SCANS}"))
    assert (await made.reconcile("shop-prod")).status is MaterialState.CURRENT
    assert await everything(jetstream) == before
    assert ledger.records["shop-prod"].status is MaterialState.CURRENT


async def test_growth_and_accepted_shrinking_are_updates_in_place(
    jetstream: JetStream, connection: Client
) -> None:
    ledger = MemoryLedger(deployment())
    made = await reconciler(jetstream, ledger)
    await made.reconcile("shop-prod")
    await (await connection.jetstream().key_value(CARTS)).put("a", b"kept")
    wider = {**GROUP, "filters": ["events.v1.Shop.Closed", "events.v1.Shop.Opened"]}
    year = 365 * 24 * 3_600_000
    ledger.desire(
        deployment(
            kv_carts={**KV, "history": 1, "ttlMs": year},
            store_scans={**STORE, "maxTotalBytes": 1 << 22},
            consumer_audit=wider,
        )
    )
    record = await made.reconcile("shop-prod")
    assert (record.status, record.version) == (MaterialState.CURRENT, 2)
    carts = await jetstream.info(ResourceRef(f"KV_{CARTS}"))
    assert carts is not None
    assert carts["config"]["max_age"] == year * 1_000_000
    assert carts["state"]["messages"] == 1
    audit = await jetstream.info(ResourceRef("trellis", AUDIT))
    assert audit is not None
    assert audit["config"]["filter_subjects"] == wider["filters"]


async def test_a_group_that_shall_replay_everything_begins_anew(
    jetstream: JetStream, connection: Client
) -> None:
    ledger = MemoryLedger(deployment())
    made = await reconciler(jetstream, ledger)
    await connection.jetstream().publish("events.v1.Shop.Opened", b"before")
    await made.reconcile("shop-prod")
    ledger.desire(deployment(consumer_audit={**GROUP, "replay": "all"}))
    assert (await made.reconcile("shop-prod")).status is MaterialState.CURRENT
    group = await connection.jetstream().pull_subscribe_bind(AUDIT, "trellis")
    assert [msg.data for msg in await group.fetch(1)] == [b"before"]
    await made.reconcile("shop-prod")
    seen = await jetstream.info(ResourceRef("trellis", AUDIT))
    assert seen is not None
    assert seen["delivered"]["consumer_seq"] == 1


async def test_consumers_that_are_wanted_no_longer_go_and_data_stays(
    jetstream: JetStream, connection: Client
) -> None:
    ledger = MemoryLedger(deployment())
    made = await reconciler(jetstream, ledger)
    await made.reconcile("shop-prod")
    await (await connection.jetstream().key_value(CARTS)).put("a", b"kept")
    ledger.desire(deployment(store_scans=STORE))
    record = await made.reconcile("shop-prod")
    assert not record.bindings[CONTRACT].kv
    assert await jetstream.info(ResourceRef("trellis", AUDIT)) is None
    assert not [name for name in await everything(jetstream) if name.startswith("JOBS_WORK ")]
    ledger.desire(deployment(kv_carts=KV))
    await made.reconcile("shop-prod")
    assert (await (await connection.jetstream().key_value(CARTS)).get("a")).value == b"kept"


async def test_a_manifest_that_is_lost_takes_nothing_away(jetstream: JetStream) -> None:
    made = await reconciler(jetstream, ledger := MemoryLedger(deployment()))
    before = await made.reconcile("shop-prod")
    ledger.manifests.manifest = None
    assert await made.reconcile("shop-prod") == before


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({}, "was not made by this authority"),
        ({"metadata": {OWNER: "other shop@v1 kv carts"}}, "belongs to 'other shop@v1 kv carts'"),
        (
            {"metadata": {OWNER: "shop-prod shop@v1 kv carts"}, "storage": "memory"},
            "another storage",
        ),
    ],
)
async def test_what_is_in_the_way_blocks_before_anything_is_made(
    jetstream: JetStream, config: dict[str, Any], reason: str
) -> None:
    made = await reconciler(jetstream, ledger := MemoryLedger(deployment()))
    await jetstream.create(
        ResourceRef(f"KV_{CARTS}"),
        {"name": f"KV_{CARTS}", "subjects": [f"$KV.{CARTS}.>"], **config},
    )
    before = await everything(jetstream)
    record = await made.reconcile("shop-prod")
    assert record.status is MaterialState.FAILED
    assert reason in str(record.why)
    assert not record.bindings
    assert ledger.records["shop-prod"] == record
    assert await everything(jetstream) == before


async def test_a_stream_that_takes_our_subjects_is_in_the_way(jetstream: JetStream) -> None:
    greedy = define_stream("GREEDY", "somebody", [f"$O.{SCANS}.>"])
    made = await reconciler(jetstream, MemoryLedger(deployment()))
    await jetstream.create(greedy.place, greedy.config)
    before = await everything(jetstream)
    record = await made.reconcile("shop-prod")
    assert "already go to GREEDY" in str(record.why)
    assert await everything(jetstream) == before


async def test_the_platform_names_what_is_in_its_way(jetstream: JetStream) -> None:
    await jetstream.create(ResourceRef("mine"), {"name": "mine", "subjects": ["events.v1.>"]})
    with pytest.raises(AuthorityError, match="already go to mine") as caught:
        await reconciler(jetstream, MemoryLedger())
    assert caught.value.code is Code.RESOURCE_CONFLICT
    assert [*await everything(jetstream)] == ["mine"]


async def test_old_heartbeats_do_not_fill_the_stream_of_events(
    jetstream: JetStream, connection: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    (subject,) = TRANSIENT_SUBJECTS
    assert subject == builtins()["trellis.health@v1"]["events"]["Health.Heartbeat"]["subject"]
    monkeypatch.setitem(cast("dict[str, int]", TRANSIENT_SUBJECTS), subject, 2)
    made = await reconciler(jetstream, MemoryLedger())
    for number in range(5):
        await connection.jetstream().publish(subject, b"%d" % number)
        await connection.jetstream().publish("events.v1.Shop.Opened", b"kept")
    await made.prepare()
    info = await connection.jetstream().stream_info("trellis", subjects_filter=">")
    assert info.state.subjects == {subject: 2, "events.v1.Shop.Opened": 5}


async def test_repair_sets_the_limits_that_an_operator_chose(
    jetstream: JetStream, connection: Client
) -> None:
    # As the version before made them, which knew no limits.
    for name, subjects, more in (
        ("trellis", ["events.>"], {"allow_direct": True}),
        ("JOBS_WORK", ["trellis.work.>"], {"retention": "workqueue"}),
    ):
        old = define_stream(name, "platform", subjects, **more)
        await jetstream.create(old.place, {**old.config, "metadata": {OWNER: old.owner}})
    await connection.jetstream().publish("trellis.work.shop.pack", b"waits")
    await reconciler(jetstream, MemoryLedger())
    work = await connection.jetstream().stream_info("JOBS_WORK")
    assert (work.config.max_bytes, work.state.messages) == (256 << 20, 1)
    for megabytes, days in ((2, 1), (0, 0), (3, 2)):
        keeping = StreamRetention(events_days=days, events_megabytes=megabytes)
        made = Reconciler(jetstream, MemoryLedger().as_authority(), IDS, retention=keeping)
        await made.prepare()
        await made.prepare()
        config = (await connection.jetstream().stream_info("trellis")).config
        assert config.max_bytes == (megabytes << 20 or -1)
        assert (config.max_age or 0) == days * 24 * 3600


async def test_a_queue_that_is_full_refuses_work_and_loses_none(
    jetstream: JetStream, connection: Client
) -> None:
    made = Reconciler(
        jetstream, MemoryLedger().as_authority(), IDS, retention=StreamRetention(work_megabytes=1)
    )
    await made.prepare()
    js = connection.jetstream()
    for _ in range(3):
        await js.publish("trellis.work.shop.pack", bytes(300_000))
    with pytest.raises(nats.errors.Error):
        await js.publish("trellis.work.shop.pack", bytes(300_000))
    assert (await js.stream_info("JOBS_WORK")).state.messages == 3


async def test_a_server_without_room_is_told_with_the_settings(
    connection: Client,
) -> None:
    refusing = Refusing(connection, ResourceRef("trellis"))
    with pytest.raises(AuthorityError, match="events_megabytes") as caught:
        await Reconciler(refusing, MemoryLedger().as_authority(), IDS).prepare()
    assert caught.value.code is Code.RESOURCE_CONFLICT


class Refusing(JetStream):
    """A server that refuses the creation of one thing."""

    def __init__(self, connection: Client, place: ResourceRef) -> None:
        super().__init__(connection)
        self._place = place

    async def create(self, place: ResourceRef, config: Any) -> None:
        if place == self._place:
            raise JetStreamError(
                10047, "insufficient storage resources available", where=str(place)
            )
        await super().create(place, config)


async def test_a_failed_attempt_takes_back_what_it_made_and_nothing_else(
    connection: Client, jetstream: JetStream
) -> None:
    await (await reconciler(jetstream, MemoryLedger(deployment(kv_carts=KV)))).reconcile(
        "shop-prod"
    )
    before = await everything(jetstream)
    ledger = MemoryLedger(deployment())
    refusing = Refusing(connection, ResourceRef("trellis", AUDIT))
    record = await Reconciler(refusing, ledger.as_authority(), IDS).reconcile("shop-prod")
    assert record.status is MaterialState.FAILED
    assert "insufficient storage" in str(record.why)
    assert await everything(jetstream) == before


async def test_a_failure_leaves_the_bindings_that_were_there(
    connection: Client, jetstream: JetStream
) -> None:
    ledger = MemoryLedger(deployment(kv_carts=KV))
    first = await (await reconciler(jetstream, ledger)).reconcile("shop-prod")
    ledger.desire(deployment(kv_carts=KV, job_refund=JOB, kv_prices=KV))
    prices = physical_name(NamePrefix.KV, "shop-prod", CONTRACT, "prices")
    refusing = Refusing(connection, ResourceRef(f"KV_{prices}"))
    record = await Reconciler(refusing, ledger.as_authority(), IDS).reconcile("shop-prod")
    assert (record.status, record.version) == (MaterialState.FAILED, 2)
    assert record.bindings == first.bindings
    done = await Reconciler(jetstream, ledger.as_authority(), IDS).reconcile("shop-prod")
    assert (done.status, done.why) == (MaterialState.CURRENT, None)


class Moving(MemoryLedger):
    """Somebody accepts something else at the very moment of recording."""

    moved = False

    async def materialize(self, record: Any) -> bool:
        if not self.moved:
            self.moved = True
            self.desire(deployment(store_scans=STORE))
        return await super().materialize(record)


async def test_what_changes_meanwhile_is_made_instead(jetstream: JetStream) -> None:
    ledger = Moving(deployment())
    record = await (await reconciler(jetstream, ledger)).reconcile("shop-prod")
    assert (record.status, record.version) == (MaterialState.CURRENT, 2)
    made = {name for name in await everything(jetstream) if "acc_" in name}
    operations = physical_name(NamePrefix.OPERATIONS, "shop-prod", CONTRACT)
    assert made == {"KV_acc_state", f"OBJ_{SCANS}", f"KV_{operations}"}


class Overtaken(JetStream):
    """Another authority makes the same thing a moment earlier."""

    async def create(self, place: ResourceRef, config: Any) -> None:
        other = {**config["metadata"], "accord.attempt": "another"}
        await super().create(place, {**config, "metadata": other})
        await super().create(place, config)


async def test_two_authorities_at_once_make_one_set(
    connection: Client, jetstream: JetStream
) -> None:
    ledger = MemoryLedger(deployment(kv_carts=KV, consumer_audit=GROUP))
    await reconciler(jetstream, ledger)
    record = await Reconciler(Overtaken(connection), ledger.as_authority(), IDS).reconcile(
        "shop-prod"
    )
    assert record.status is MaterialState.CURRENT
    carts = await jetstream.info(ResourceRef(f"KV_{CARTS}"))
    assert carts is not None
    assert carts["config"]["metadata"]["accord.attempt"] == "another"


async def test_many_who_reconcile_at_the_same_time_come_to_one_set(
    jetstream: JetStream, server: Server
) -> None:
    made = await reconciler(jetstream, MemoryLedger(deployment()))
    expected = await made.reconcile("shop-prod")
    before = await everything(jetstream)
    async with AsyncExitStack() as stack:
        clients = [await nats.connect(server.url) for _ in range(4)]
        for client in clients:
            stack.push_async_callback(client.close)
        for _ in range(5):
            for name in before:
                if "acc_" in name and " " not in name:
                    await jetstream.delete(ResourceRef(name))
            await jetstream.delete(ResourceRef("trellis", AUDIT))
            ledger = MemoryLedger(deployment())
            records = await asyncio.gather(
                *(
                    Reconciler(
                        JetStream(client), ledger.as_authority(), UlidSource(SystemClock())
                    ).reconcile("shop-prod")
                    for client in clients
                )
            )
            assert records == [expected] * 4
            await made.prepare()
            assert await everything(jetstream) == before


async def test_a_server_that_does_not_answer_is_said_so_and_nothing_is_recorded(
    jetstream: JetStream, server: Server
) -> None:
    made = await reconciler(jetstream, ledger := MemoryLedger(deployment()))
    silent = JetStream(await nats.connect(server.url), seconds=0.5)
    await silent._connection.close()
    made._jetstream = silent
    with pytest.raises(AuthorityError) as caught:
        await made.reconcile("shop-prod")
    assert caught.value.code is Code.UNAVAILABLE
    assert not ledger.records
