"""A person of a page in the web chat, who writes and waits for answers."""

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import httpx

_TYPING = 3.0
"""Seconds that somebody needs for the first words; a station notices within one who has come in."""
_PATIENCE = 20.0
"""Seconds without an answer after which somebody asks once more: a busy station notices later."""


class Person:
    """Somebody in a browser; joins by an invitation, as the page of the web chat would."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._http = httpx.Client(headers={"x-accord-chat": "1"}, timeout=60)
        self._invite = ""
        self._space: Any = None
        self._written = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._http.close()

    def join(self, link: str) -> None:
        """Come in by an invitation, unless by this one already."""
        if link == self._invite:
            return
        self._invite = link
        address, _, invite = link.partition("/chat/#invite=")
        self._http.base_url = httpx.URL(f"{address}/chat/api/")
        known = self._spaces() if self._space else []
        name = {} if known else {"name": self._name}
        self._ask("POST", "join", {"invite": invite, **name})
        self._space = next(each for each in self._spaces() if each not in known)
        time.sleep(_TYPING)

    def chat(self, where: str, *, direct: bool) -> str:
        """The id of a channel in the space joined last, or of the direct chat with a bot."""
        if direct:
            bots = self._ask("GET", "me")["bots"]
            bot = next(each["id"] for each in bots if each["name"] == where)
            return str(self._ask("POST", f"bots/{bot}/chat")["chat"])
        return str(next(each["id"] for each in self._space["channels"] if each["name"] == where))

    def write(self, chat: str, text: str, enough: Callable[[str], bool], seconds: float) -> str:
        """Write something; all that bots say after it, once that is enough or time is over."""
        posted = self._post(chat, text)
        again, deadline = time.monotonic() + _PATIENCE, time.monotonic() + seconds
        while not enough(heard := self._heard(chat, posted)) and time.monotonic() < deadline:
            if not heard and time.monotonic() > again:
                self._post(chat, text)
                again = deadline
            time.sleep(0.1)
        return heard

    def _post(self, chat: str, text: str) -> int:
        self._written += 1
        body = {"text": text, "key": f"page-{self._written}"}
        return int(self._ask("POST", f"chats/{chat}/messages", body)["id"])

    def _spaces(self) -> list[Any]:
        return list(self._ask("GET", "me")["spaces"])

    def _heard(self, chat: str, after: int) -> str:
        messages = self._ask("GET", f"chats/{chat}/messages")["messages"]
        ids = [each["id"] for each in messages]
        later = messages[ids.index(after) + 1 :]
        return "\n".join(each["text"] for each in later if each["author"]["bot"])

    def _ask(self, method: str, path: str, body: dict[str, str] | None = None) -> Any:
        answer = self._http.request(method, path, json=body)
        assert answer.is_success, f"{method} {path}: {answer.text}"
        return answer.json()
