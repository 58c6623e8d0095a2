"""Everything between the socket and the agent, put together: inbox, sessions, turns, requests.

Owns no rule of its own but one: what an earlier process left has its turn before what is new.
"""

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from accord.relay.errors import Code, RelayError
from accord.relay.gateway.agents import Agent
from accord.relay.gateway.chats import Chats
from accord.relay.gateway.inbox import Taken
from accord.relay.gateway.intake import Intake
from accord.relay.gateway.outbound import Requests
from accord.relay.gateway.sessions import Ending, Sessions
from accord.relay.gateway.settings import GatewaySettings
from accord.relay.gateway.turns import Turns
from accord.relay.wire import Descriptor, Result, Send

T = TypeVar("T")


class Serving:
    """What one agent has to do, and says.

    Args:
        agent: Who answers.
        settings: How sessions are named and what a busy one does.
        new_id: Makes request ids.
        active: Called whenever something happened.
        counts: What happened how often.
    """

    def __init__(
        self,
        agent: Agent,
        settings: GatewaySettings,
        new_id: Callable[[], str],
        active: Callable[[], None],
        counts: Counter[str],
    ) -> None:
        self._agent = agent
        self._settings = settings
        self._active = active
        self._counts = counts
        self._chats = Chats(settings.limits.chats)
        self._descriptors: tuple[Descriptor, ...] = ()
        self._left: list[tuple[int, str]] = []
        self._sessions: Sessions | None = None
        self._intake: Intake | None = None
        self.requests = Requests(new_id, settings.limits, counts)

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is under way: no turn, no event, no action."""
        return self.intake.is_empty and self.sessions.is_quiet and self.requests.is_empty

    @property
    def intake(self) -> Intake:
        """The way in."""
        return _opened(self._intake)

    @property
    def sessions(self) -> Sessions:
        """Where turns are had."""
        return _opened(self._sessions)

    async def open(self, inbox: Taken) -> None:
        """Begin with an inbox.

        Raises:
            StoreError: The inbox cannot be read.
        """
        settings = self._settings
        self._left = await inbox.unfinished()
        turns = Turns(
            self._agent,
            inbox,
            self.requests,
            self._chats,
            describe=self._describe,
            interrupt=lambda key: self.sessions.interrupt(key),
            apology=settings.apology,
            limits=settings.limits,
            counts=self._counts,
        )

        async def ended(number: int, ending: Ending) -> None:
            self._active()
            await turns.ended(number, ending)

        self._sessions = Sessions(turns.run, ended, settings.limits.turns)
        self._intake = Intake(
            inbox,
            self._sessions,
            self._chats,
            dialect=settings.session_keys,
            when_busy=settings.when_busy,
            read_forward=settings.read_forward,
            counts=self._counts,
        )

    def resume(self, descriptors: tuple[Descriptor, ...]) -> None:
        """There is a connection, and what platforms can do is known: begin what was left."""
        self._descriptors = descriptors
        left, self._left = self._left, []
        for number, key in left:
            self.sessions.offer(number, key)

    async def send(self, chat_id: str, content: str, reply_to: str | None) -> Result:
        """Say something outside a turn."""
        place = self._chats.find(chat_id)
        action = Send(chat_id, content, reply_to, place.metadata)
        return await self.requests.perform(action, place.platform, place.bot_id)

    def _describe(self, platform: str | None) -> Descriptor:
        named = [each for each in self._descriptors if each.platform == platform]
        return (named or self._descriptors)[0]


def _opened(part: T | None) -> T:
    if part is None:
        raise RelayError(Code.CONFLICT, "the gateway does not run yet", mend="call run() first")
    return part
