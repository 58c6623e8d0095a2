"""A press: one operation, which tells how far it is and can be cancelled.

    accord service run examples.press:press

The operation is kept by the fabric, not by this process. Stop the press in the middle and start it
again: the operation goes on after the last copy that it told of.
"""

import asyncio
import sys
from typing import Annotated

from pydantic import Field
from typing_extensions import TypedDict

from accord.contracts.authoring import Contract
from accord.fabric import Authority, Service
from accord.fabric.operations import OperationContext
from accord.kernel.signing import SigningKey
from accord.storage import Store

_SECONDS_FOR_A_COPY = 0.2


class Order(TypedDict):
    """What is printed, and how often."""

    title: Annotated[str, Field(min_length=1, max_length=100)]
    copies: Annotated[int, Field(ge=1, le=1000)]


class Printed(TypedDict):
    """How many copies there are."""

    copies: int


def contract() -> Contract:
    """What the press promises: anybody who may call it may cancel what was ordered."""
    press = Contract("press@v1", display_name="Press", description="Prints copies, one by one.")
    press.serves_callers()
    press.operation("Press.Print", Order, Printed, progress=Printed, cancel=[])
    return press


def press(key: SigningKey, authority: Authority, store: Store | None) -> Service:
    """The service."""
    service = Service(contract(), key=key, authority=authority, store=store)

    @service.operation("Press.Print")
    async def print_copies(context: OperationContext, order: Order) -> Printed:
        done = context.resumed_from or Printed(copies=0)
        while done["copies"] < order["copies"]:
            # Whoever cancels ends it here, as any task is cancelled.
            await asyncio.sleep(_SECONDS_FOR_A_COPY)
            done = Printed(copies=done["copies"] + 1)
            await context.progress(done)
        return done

    return service


if __name__ == "__main__":
    sys.stdout.buffer.write(contract().to_json())
