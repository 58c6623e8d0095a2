"""The greeter as a workflow with one activity."""

import asyncio
from dataclasses import dataclass
from datetime import timedelta

from temporalio import activity, workflow
from temporalio.client import Client
from temporalio.worker import Worker


@dataclass
class Name:
    """Who is greeted."""

    name: str


@activity.defn
async def compose(who: Name) -> str:
    """Compose a greeting."""
    return f"Good morning, {who.name}!"


@workflow.defn
class Greet:
    """Greet somebody."""

    @workflow.run
    async def run(self, who: Name) -> str:
        """Run the activity."""
        return await workflow.execute_activity(
            compose, who, start_to_close_timeout=timedelta(seconds=10)
        )


async def main() -> None:
    """Work."""
    client = await Client.connect("127.0.0.1:7233")
    worker = Worker(client, task_queue="greeter", workflows=[Greet], activities=[compose])
    await worker.run()


if __name__ == "__main__":
    asyncio.run(main())
