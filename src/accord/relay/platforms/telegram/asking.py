"""Asking Telegram until it answers: what listening needs and cannot do without.

Owns the patience: how long to wait after which trouble, and that trouble and its end are told. An
agent's own actions are not repeated by it.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from accord.relay.connector.platform import PlatformContext
from accord.relay.errors import Code, RelayError
from accord.relay.platforms.telegram.api import Answer, BotApi
from accord.relay.platforms.telegram.entities import Me

T = TypeVar("T")

_FIRST: Final = 1.0
_LONGEST: Final = 30.0
_ELSEWHERE: Final = "stop what else uses this token, or give it a token of its own"


class Asking:
    """Questions of one listener.

    Args:
        api: Whom to ask.
        context: Who is told of trouble.
    """

    def __init__(self, api: BotApi, context: PlatformContext) -> None:
        self._api = api
        self._context = context
        self._delay = _FIRST
        self._is_ready = False

    async def ask(
        self,
        method: str,
        parameters: Mapping[str, Any] | None,
        read: Callable[[Any], T],
        *,
        patience: float = 0.0,
    ) -> T:
        """Call a method until there is an answer that can be read.

        Raises:
            RelayError: Telegram refuses the token.
        """
        while True:
            try:
                answer = await self._api.call(method, parameters, patience=patience)
                if answer.ok:
                    result = read(answer.result)
                    self._delay = _FIRST
                    return result
                trouble, wait = _trouble(answer), answer.retry_after
            except (RelayError, TimeoutError) as error:
                if isinstance(error, RelayError) and error.code is Code.UNAUTHORIZED:
                    raise
                trouble, wait = _unavailable(error), None
            self.troubled(trouble)
            await asyncio.sleep(wait or self._delay)
            self._delay = min(2 * self._delay, _LONGEST)

    def troubled(self, error: RelayError) -> None:
        """Something is wrong."""
        self._is_ready = False
        self._context.troubled(error)

    def ready(self) -> None:
        """Telegram is heard: said when that is news."""
        if not self._is_ready:
            self._is_ready = True
            self._context.ready()


def refused() -> RelayError:
    """Telegram does not know the token."""
    return RelayError(
        Code.UNAUTHORIZED,
        "Telegram refuses the bot's token",
        where="relay.telegram.token",
        mend="get a new one from BotFather with /token and set it",
    )


def read_me(value: Any, bot_id: int) -> Me:
    """Who the bot is, as `getMe` says.

    Raises:
        RelayError: The answer makes no sense.
    """
    name = value.get("username") if isinstance(value, dict) else None
    if not isinstance(name, str) or not name.isascii() or not 0 < len(name) <= 64:
        raise RelayError(Code.UNAVAILABLE, "Telegram does not say who the bot is")
    return Me(bot_id, name)


def _trouble(answer: Answer) -> RelayError:
    if answer.is_refusal:
        raise refused()
    mend = _ELSEWHERE if answer.code == 409 else None
    code = Code.RATE_LIMITED if answer.retry_after else Code.UNAVAILABLE
    return RelayError(code, answer.trouble, mend=mend)


def _unavailable(error: RelayError | TimeoutError) -> RelayError:
    return error if isinstance(error, RelayError) else RelayError(Code.UNAVAILABLE, str(error))
