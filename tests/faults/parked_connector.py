"""A connector that will be killed while its platform does not say who can see what.

Prints the id of each event once its receipt was told to the service. With the last argument `yes`
the platform answers, and what was parked is delivered.
"""

import asyncio
import sys
from pathlib import Path

from tests.fakes.platform import MemoryChat, MemoryPlatform

from accord.kernel.clock import SystemClock
from accord.relay.connector import RELAY, DeliveryLimits, InboundEvent, Keyring, open_connector
from accord.station import logs
from accord.station.sections import LogSettings
from accord.storage import open_store

CLOCK = SystemClock()
LIMITS = DeliveryLimits(
    sweep_seconds=0.05,
    renew_seconds=0.2,
    lease_seconds=1.0,
    park_pause_seconds=0.1,
    park_longest_pause_seconds=0.2,
)


class TellingChat(MemoryChat):
    """Prints what it is told of."""

    def receive(self, inbound: InboundEvent) -> None:
        super().receive(inbound)
        print(f"received {inbound.event_id}", flush=True)


async def main(where: str, name: str, answers: str) -> None:
    chat = TellingChat(blind=answers != "yes")
    for channel in ("c1", "c2"):
        chat.channel(channel, scope_id="g1")
    async with (
        open_store(where, RELAY) as store,
        open_connector(
            store,
            Keyring.load(Path(where) / "relay.key"),
            CLOCK,
            name=name,
            platforms=[MemoryPlatform(chat)],
            limits=LIMITS,
        ),
    ):
        print("ready", flush=True)
        number = 0
        while True:
            channel = f"c{number % 2 + 1}"
            if answers != "yes":
                chat.write("ann", channel, f"{name}-{number}", event_id=f"{name}-{number}")
                number += 1
            await asyncio.sleep(0.002)


if __name__ == "__main__":
    with logs.configured(LogSettings(level="error")):
        asyncio.run(main(*sys.argv[1:]))
