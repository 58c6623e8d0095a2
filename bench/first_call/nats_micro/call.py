"""Call the greeter."""

import asyncio

import nats


async def main() -> None:
    """Print an answer."""
    client = await nats.connect("nats://127.0.0.1:7097")
    answer = await client.request("greet", b'{"name": "Ann"}')
    print(answer.data.decode())
    await client.close()


asyncio.run(main())
