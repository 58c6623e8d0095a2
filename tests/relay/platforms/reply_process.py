"""A gateway that will be killed: its agent says several things to every message.

What the agent is told of each is appended to a file, a line each, before it goes on; and so are the
ends of what was queued.
"""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

from accord.relay.gateway import GatewayLimits, GatewaySettings, GatewayState, RelayGateway, Turn
from accord.relay.rules import Result

LIMITS = GatewayLimits(first_delay=0.05, longest_delay=0.3, attempts=10_000, outbound=5.0)


async def main(url: str, secret: str, folder: str, each: int, identities: list[Any]) -> None:
    """Serve until killed; `each` is how many replies a message gets."""
    log = Path(folder, "told.jsonl").open("a", encoding="utf-8")  # noqa: ASYNC230, SIM115

    def note(text: str | None, result: Result) -> None:
        told = {"text": text, "request_id": result.request_id, **result.to_dict()}
        log.write(json.dumps(told) + "\n")
        log.flush()

    async def answer(turn: Turn) -> None:
        for number in range(each):
            text = f"{turn.event.text} reply {number}"
            note(text, await turn.send(text))

    gateway = RelayGateway(
        url,
        secret=secret,
        gateway_id="gw-one",
        agent=answer,
        settings=GatewaySettings(
            identities=tuple((name, bot) for name, bot in identities),
            inbox=Path(folder, "gateway"),
            limits=LIMITS,
            apology=None,
            on_outcome=lambda result: note(None, result),
        ),
    )
    running = asyncio.create_task(gateway.run())
    await gateway.reached(GatewayState.RUNNING)
    print("running", flush=True)
    await running


if __name__ == "__main__":
    where, key, place, count, names = sys.argv[1:]
    asyncio.run(main(where, key, place, int(count), json.loads(names)))
