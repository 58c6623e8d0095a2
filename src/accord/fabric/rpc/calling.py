"""The calling side of an RPC."""

from typing import Any

from accord.fabric import payloads
from accord.fabric.link import TIMEOUT, Link
from accord.fabric.terms import Rpc


async def call(link: Link, rpc: Rpc, payload: Any, *, within: float = TIMEOUT) -> Any:
    """Ask, and return the answer's payload.

    Raises:
        ValidationError: The request breaks the contract (then it was not sent), or the answer does.
        FabricError: What the service answered, or why nothing came back.
    """
    data = payloads.write(rpc.input, payload, "the request")
    msg = await link.request(rpc.subject, data, within)
    return payloads.read(rpc.output, msg.data, "the answer")
