"""Start the workflow and print its result."""

import asyncio

from temporalio.client import Client
from worker import Greet, Name


async def main() -> None:
    """Print a result."""
    client = await Client.connect("127.0.0.1:7233")
    print(
        await client.execute_workflow(
            Greet.run, Name(name="Ann"), id="greet-ann", task_queue="greeter"
        )
    )


asyncio.run(main())
