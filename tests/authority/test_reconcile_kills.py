"""Reconciliation that is killed, and run again."""

import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import nats
import pytest
from nats.aio.client import Client
from tests.authority.reconcile_cases import (
    CONTRACT,
    KV,
    STORE,
    KilledError,
    MemoryLedger,
    Mortal,
    MortalJetStream,
    MortalLedger,
    deployment,
    everything,
)

from accord.authority.reconcile import JetStream, Reconciler
from accord.authority.rules import MaterialState, NamePrefix, ResourceRef, physical_name
from accord.kernel.clock import SystemClock
from accord.kernel.identifiers import UlidSource
from accord.testing.processes import python_child
from accord.testing.servers import Server, nats_server

pytestmark = pytest.mark.slow

IDS = UlidSource(SystemClock())
ROOT = Path(__file__).parents[2]
CARTS = physical_name(NamePrefix.KV, "shop-prod", CONTRACT, "carts")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with nats_server(jetstream=True) as running:
        yield running


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    connected = await nats.connect(server.url)
    yield connected
    await wipe(JetStream(connected))
    await connected.close()


async def wipe(jetstream: JetStream) -> None:
    for name in (await jetstream.ask("STREAM.NAMES", {}))["streams"] or ():
        await jetstream.delete(ResourceRef(name))


async def run(client: Client, ledger: MemoryLedger, mortal: Mortal) -> None:
    """Reconcile from nothing, and then something else, in a process that may end."""
    reconciler = Reconciler(
        MortalJetStream(client, mortal), MortalLedger(ledger, mortal).as_authority(), IDS
    )
    await reconciler.prepare()
    await reconciler.reconcile("shop-prod")
    if ledger.known["shop-prod"].version == 1:
        ledger.desire(deployment(kv_carts={**KV, "history": 7}, store_scans=STORE))
    await reconciler.reconcile("shop-prod")


@pytest.mark.parametrize("after", [False, True])
async def test_killed_at_every_step_it_converges(client: Client, after: bool) -> None:
    jetstream = JetStream(client)
    whole = Mortal()
    await run(client, MemoryLedger(deployment()), whole)
    expected = await everything(jetstream)
    # Platform, the first version, its record, the second (an update, three deletions), its record.
    assert whole.count == 5 + 8 + 1 + 4 + 1
    for moment in range(whole.count):
        await wipe(jetstream)
        ledger = MemoryLedger(deployment())
        with pytest.raises(KilledError):
            await run(client, ledger, Mortal(moment, after=after))
        await run(client, ledger, Mortal())
        assert await everything(jetstream) == expected, moment
        assert ledger.records["shop-prod"].status is MaterialState.CURRENT
        assert ledger.records["shop-prod"].version == 2


async def test_what_was_adopted_survives_every_kill(client: Client) -> None:
    jetstream = JetStream(client)
    earlier = MemoryLedger(deployment(kv_carts=KV))
    reconciler = Reconciler(jetstream, earlier.as_authority(), IDS)
    await reconciler.prepare()
    await reconciler.reconcile("shop-prod")
    await (await client.jetstream().key_value(CARTS)).put("a", b"kept")
    for moment in range(9):
        ledger = MemoryLedger(deployment())
        mortal = Mortal(moment)
        reconciler = Reconciler(
            MortalJetStream(client, mortal), MortalLedger(ledger, mortal).as_authority(), IDS
        )
        with contextlib.suppress(KilledError):
            await reconciler.reconcile("shop-prod")
        assert (await (await client.jetstream().key_value(CARTS)).get("a")).value == b"kept"


def kill_at_random(server: Server, folder: Path, times: int) -> None:
    program = str(Path(__file__).with_name("reconcile_process.py"))
    arguments = (server.url, str(folder / "ledger"), str(times), "7")
    with python_child(program, *arguments, env={"PYTHONPATH": str(ROOT)}) as child:
        _, killed, _, wrong = child.read_line(within=240).split()
        assert child.wait() == 0
    assert int(killed) > times // 3
    assert int(wrong) == 0


def test_killed_with_sigkill_at_20_random_points_it_converges(
    server: Server, tmp_path: Path
) -> None:
    kill_at_random(server, tmp_path, 20)


@pytest.mark.long
def test_killed_with_sigkill_at_100_random_points_it_converges(
    server: Server, tmp_path: Path
) -> None:
    kill_at_random(server, tmp_path, 100)
