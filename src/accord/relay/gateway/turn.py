"""What an agent is given: one event, and everything that it may do about it.

Owns the hints that go with an answer: the scope of the chat, or its author, as the connector
expects them. What becomes of an action is a `Result`; none of these calls raises.
"""

from collections.abc import Callable, Mapping
from typing import Any

from accord.relay.gateway.chats import Chats, Place
from accord.relay.gateway.inbox import Delivery
from accord.relay.gateway.limits import Limits
from accord.relay.gateway.outbound import Requests
from accord.relay.gateway.replies import Reply
from accord.relay.wire import (
    Action,
    Descriptor,
    Edit,
    FollowUp,
    GetChatInfo,
    MessageEvent,
    Result,
    Send,
    SessionSource,
    Typing,
    split,
)


class Turn:
    """One event and its answer.

    Attributes:
        event: The message.
        session_key: The session that it belongs to.
        descriptor: What its platform can do.
        attempt: How often this turn was begun, this time included; above 1 the process did not
            survive an earlier one, and parts of the answer may have been said already.
        cancelled: Whether it was interrupted. An async agent learns of it as of any cancellation;
            this is for what it runs in threads.
    """

    def __init__(
        self,
        delivery: Delivery,
        descriptor: Descriptor,
        requests: Requests,
        chats: Chats,
        limits: Limits,
        interrupt: Callable[[str], bool],
    ) -> None:
        self.event: MessageEvent = delivery.event
        self.session_key = delivery.session_key
        self.descriptor = descriptor
        self.attempt = delivery.attempt
        self.cancelled = False
        self._place = Place.of(delivery)
        self._capability = delivery.capability
        self._requests = requests
        self._chats = chats
        self._limits = limits
        self._interrupt = interrupt

    def cancel(self) -> None:
        """End this turn, as an interrupt does."""
        self._interrupt(self.session_key)

    @property
    def source(self) -> SessionSource:
        """Where the message comes from."""
        return self.event.source

    @property
    def description(self) -> str:
        """Where the agent is speaking, for its system prompt.

        It carries the platform's own hint. Where the platform asks for it, no name and no id of a
        person or chat is in it.
        """
        descriptor, source = self.descriptor, self.source
        place = f"You are in a {source.chat_type} on {descriptor.label}"
        if descriptor.pii_safe:
            told = [f"{place}."]
        else:
            name = f" called {source.chat_name!r}" if source.chat_name else ""
            told = [f"{place}{name}."]
            if source.chat_topic:
                told.append(f"Its topic is {source.chat_topic!r}.")
            if source.user_name or source.user_id:
                told.append(f"You are talking to {source.user_name or source.user_id}.")
        return " ".join([*told, descriptor.platform_hint]).strip()

    async def reply(self, text: str) -> Result:
        """Answer with a text, in as many messages as the platform needs; the last one's result."""
        result = Result(False, error="there is nothing to say")
        parts = split(text, self.descriptor.max_message_length, self.descriptor.len_unit)
        for number, part in enumerate(parts):
            result = await self.say(part, is_first=number == 0)
            if not result.success:
                break
        return result

    async def send(
        self, content: str, *, chat_id: str | None = None, reply_to: str | None = None
    ) -> Result:
        """Send one message as it is, into the chat of the turn or another."""
        chat, place = self._chat(chat_id)
        return await self._do(Send(chat, content, reply_to, place.metadata), place)

    async def edit(self, message_id: str, content: str, *, chat_id: str | None = None) -> Result:
        """Change a message that this agent sent."""
        chat, place = self._chat(chat_id)
        return await self._do(Edit(chat, message_id, content, place.metadata), place)

    async def typing(self) -> Result:
        """Show that an answer is coming, for a few seconds."""
        return await self._do(Typing(self.source.chat_id), self._place)

    async def draft(self, content: str) -> Result:
        """Show what there is of an answer, where the platform has drafts."""
        return await self._do(Typing(self.source.chat_id, content), self._place)

    async def follow_up(self, kind: str, content: str) -> Result:
        """Use a capability that came with the event; the connector keeps its value."""
        metadata = dict(self._place.metadata)
        if self.event.message_id:
            metadata["message_id"] = self.event.message_id
        action = FollowUp(self.session_key, kind, content, metadata)
        return await self._do(action, self._place)

    async def chat_info(self, chat_id: str | None = None) -> Mapping[str, Any] | None:
        """The name and type of a chat, and what else the platform tells; None where it does not."""
        chat, place = self._chat(chat_id)
        result = await self._do(GetChatInfo(chat), place)
        return result.chat_info if result.success else None

    async def create_handoff_thread(self, name: str) -> str | None:
        """Open a thread to hand the conversation over to; None where there is no such thing.

        The contract tells that a platform has threads and has no action that opens one yet. It is
        asked for as a capability, which a connector without it refuses.
        """
        if not self.descriptor.supports_threads:
            return None
        result = await self.follow_up(f"{self._place.platform}.create_handoff_thread", name)
        return result.message_id if result.success else None

    async def say(self, content: str, *, is_first: bool) -> Result:
        """Send a part of the answer: by the capability that came with the event, else as usual."""
        if self._capability is not None:
            result = await self.follow_up(self._capability, content)
            if result.success:
                return result
            self._capability = None  # used up or expired
        answers = is_first and not self.source.is_dm
        return await self.send(content, reply_to=self.event.message_id if answers else None)

    def open_reply(self) -> Reply:
        """A reply that is shown while it grows."""
        edits = self.descriptor.supports_edit and self._capability is None
        drafts = self.descriptor.supports_draft_streaming and self.source.is_dm
        pause = self._limits.edit
        return Reply(self, self.descriptor, edits=edits, pause=pause, drafts=drafts)

    def _chat(self, chat_id: str | None) -> tuple[str, Place]:
        if chat_id is None or chat_id == self.source.chat_id:
            return self.source.chat_id, self._place
        return chat_id, self._chats.find(chat_id)

    async def _do(self, action: Action, place: Place) -> Result:
        return await self._requests.perform(action, place.platform, place.bot_id)
