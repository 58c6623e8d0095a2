"""The greeter as a NATS service."""

import asyncio

import nats
from nats import micro
from pydantic import BaseModel


class Name(BaseModel):
    """Who is greeted."""

    name: str


class Greeting(BaseModel):
    """The greeting."""

    text: str


async def greet(request: micro.Request) -> None:
    """Greet somebody."""
    who = Name.model_validate_json(request.data)
    answer = Greeting(text=f"Good morning, {who.name}!")
    await request.respond(answer.model_dump_json().encode())


async def main() -> None:
    """Serve."""
    client = await nats.connect("nats://127.0.0.1:7097")
    service = await micro.add_service(client, name="greeter", version="1.0.0")
    await service.add_endpoint(name="greet", handler=greet)
    await asyncio.Event().wait()


asyncio.run(main())
