"""Asking either side under an id that is given: the same id stands in both journals.

Owns the signed call to the node's own bus and the signed request to a service. Ordinary clients
make an id for each request; the bridge passes on the one that it got.
"""

from typing import Any, Final

from accord import tracing
from accord.community.client import LocalTransport
from accord.community.client.exchange import EVENTS, Exchange
from accord.community.envelope import calls
from accord.community.errors import Code, CommunityError
from accord.community.node import Node
from accord.fabric import Link, payloads, proofs
from accord.fabric.link import raise_error
from accord.fabric.terms import Rpc
from accord.kernel import canonical
from accord.kernel.clock import Clock, format_time
from accord.tracing import SpanKind

_CALL: Final = "/bus/v1/call"
# Not this machine: the bus must not take a service for the owner of the node, whose private
# corpora and chats are open to it, and who has no limits.
_ADDRESS: Final = "bridge"
_SECONDS: Final = 180.0


class Bus:
    """The bus of a node in this process, for others than its owner.

    Args:
        node: The node, whose key signs.
        clock: The time.
        chosen: In which community; empty for the first that the node is in.
    """

    def __init__(self, node: Node, clock: Clock, chosen: str = "") -> None:
        self._node = node
        self._clock = clock
        self._chosen = chosen
        self._exchange = Exchange(
            "http://node",
            node.key.id,
            clock=clock,
            ssl_context=None,
            transport=LocalTransport(node.application(), address=_ADDRESS),
            seconds=_SECONDS,
        )

    @property
    def community(self) -> str:
        """The community that is bridged.

        Raises:
            CommunityError: The node is not in it, or in none: `partition`.
        """
        hosted = self._node.communities
        found = [each for each in hosted if hosted[each].is_member]
        if self._chosen:
            found = [each for each in found if each == self._chosen]
        if not found:
            raise CommunityError(
                Code.PARTITION,
                f"this station is in no {'such ' if self._chosen else ''}community yet",
                mend="found one with accord community create, or join one",
            )
        return found[0]

    async def call(
        self, capability: str, version: str, body: Any, *, request_id: str
    ) -> dict[str, Any]:
        """Call a capability and return its answer.

        Raises:
            CommunityError: With the node's code.
        """
        request = calls.sign_request(
            self._node.key,
            capability=capability,
            version=version,
            request_id=request_id,
            community=self.community,
            timestamp=format_time(self._clock.now()),
            body=body,
            to=self._node.key.id,
        )
        content = canonical.encode(body)
        with tracing.step("bus request", SpanKind.CLIENT, capability=capability):
            answer = await self._ask(request, content)
        if not isinstance(answer, dict):
            raise CommunityError(Code.BAD_REQUEST, "the answer is not a JSON object")
        return answer

    async def _ask(self, request: calls.Request, content: bytes) -> Any:
        further = [(tracing.HEADER, tracing.header())]
        async with self._exchange.open("POST", _CALL, request, content, further=further) as found:
            if found.headers.get("content-type", "").startswith(EVENTS):
                raise CommunityError(
                    Code.NOT_IMPLEMENTED, f"{request.capability} answers this by a stream"
                )
            return await self._exchange.read(found, request, verify=True)

    async def aclose(self) -> None:
        """Close what was opened."""
        await self._exchange.__aexit__()


async def ask_service(link: Link, rpc: Rpc, payload: Any, *, request_id: str, within: float) -> Any:
    """Call an RPC of a service and return its answer.

    Raises:
        FabricError: What the service answered, or why nothing came back.
    """
    data = payloads.write(rpc.input, payload, "the request")
    now = int(link.clock.now())
    headers = proofs.sign(link.key, link.session, rpc.subject, data, now, request_id)
    with tracing.step("fabric request", SpanKind.CLIENT, subject=rpc.subject):
        headers[tracing.HEADER] = tracing.header()
        msg = await link.inbox.ask(rpc.subject, data, headers, within)
        raise_error(msg)
    return payloads.read(rpc.output, msg.data, "the answer")
