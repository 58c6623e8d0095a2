"""State that a contract declares, kept by the authority for whoever holds the session.

Owns the requests of `trellis.state@v1`. Whose state it is follows from the session alone.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, Final

from accord.fabric import payloads
from accord.fabric.errors import ConflictError, ValidationError
from accord.fabric.link import Link
from accord.fabric.state.entry import Declared, Entry, Migration
from accord.fabric.terms import Terms
from accord.kernel import canonical

_PAGE: Final = 200
_TRIES: Final = 20


class _Store:
    def __init__(
        self,
        link: Link,
        terms: Terms,
        name: str,
        migrations: Mapping[str, Migration] | None = None,
    ) -> None:
        self._link = link
        self._declared = Declared(terms, name, migrations)
        kind = "map" if isinstance(self, StateMap) else "value"
        if self._declared.is_map != (kind == "map"):
            raise ValidationError(f"the state {name!r} is no {kind}", where=terms.id)

    async def _ask(self, verb: str, key: str | None = None, **members: Any) -> dict[str, Any]:
        asked = {"store": self._declared.name, **members}
        if key is not None:
            asked["key"] = key
        answer = await self._link.request(f"rpc.v1.State.{verb}", canonical.encode(asked))
        body = payloads.parse(answer.data, "the answer")
        if not isinstance(body, dict):
            raise ValidationError("the answer is no object")
        return body

    async def _get(self, key: str | None) -> Entry | None:
        entry = (await self._ask("Get", key)).get("entry")
        return None if entry is None else self._declared.read(entry)

    async def _put(self, key: str | None, value: Any, revision: int | None) -> int:
        self._declared.check(value)
        expected = {} if revision is None else {"expectedRevision": revision}
        answer = await self._ask("Put", key, value=value, **expected)
        if not answer.get("applied"):
            raise ConflictError(
                "it was changed meanwhile", context={"revision": answer.get("revision", 0)}
            )
        return int(answer["revision"])

    async def _delete(self, key: str | None, revision: int | None) -> bool:
        expected = {} if revision is None else {"expectedRevision": revision}
        answer = await self._ask("Delete", key, **expected)
        if not answer.get("applied") and answer.get("found") is not None:
            raise ConflictError("it was changed meanwhile")
        return bool(answer.get("applied"))

    async def _change(self, key: str | None, change: Callable[[Any], Any]) -> Any:
        for _ in range(_TRIES):
            found = await self._get(key)
            value = change(None if found is None else found.value)
            try:
                await self._put(key, value, 0 if found is None else found.revision)
            except ConflictError:
                continue
            return value
        raise ConflictError("too many change it at once")


class StateValue(_Store):
    """One value.

    Args:
        link: The session's link.
        terms: The contract that the session presented.
        name: The store.
        migrations: For each older version that the contract accepts, what carries values over.
    """

    async def get(self) -> Entry | None:
        """The value, or None.

        Raises:
            ValidationError: What is kept breaks the contract.
        """
        return await self._get(None)

    async def put(self, value: Any, *, revision: int | None = None) -> int:
        """Keep a value, and return its revision.

        Args:
            value: The value.
            revision: Where given, the one that must be there; 0 for none.

        Raises:
            ValidationError: It breaks the contract.
            ConflictError: Another revision is there.
        """
        return await self._put(None, value, revision)

    async def change(self, change: Callable[[Any], Any]) -> Any:
        """Put what a function makes of the value, None at first, until nobody comes between.

        Raises:
            ConflictError: Too many change it at once.
        """
        return await self._change(None, change)

    async def delete(self, *, revision: int | None = None) -> bool:
        """Delete the value; whether there was one.

        Raises:
            ConflictError: Another revision is there.
        """
        return await self._delete(None, revision)


class StateMap(_Store):
    """Values by key.

    Args:
        link: The session's link.
        terms: The contract that the session presented.
        name: The store.
        migrations: For each older version that the contract accepts, what carries values over.
    """

    async def get(self, key: str) -> Entry | None:
        """What a key holds, or None.

        Raises:
            ValidationError: What is kept breaks the contract.
        """
        return await self._get(key)

    async def put(self, key: str, value: Any, *, revision: int | None = None) -> int:
        """Keep a value, and return its revision.

        Args:
            key: The key.
            value: The value.
            revision: Where given, the one that must be there; 0 for none.

        Raises:
            ValidationError: It breaks the contract.
            ConflictError: Another revision is there.
        """
        return await self._put(key, value, revision)

    async def change(self, key: str, change: Callable[[Any], Any]) -> Any:
        """Put what a function makes of a value, None at first, until nobody comes between.

        Raises:
            ConflictError: Too many change it at once.
        """
        return await self._change(key, change)

    async def delete(self, key: str, *, revision: int | None = None) -> bool:
        """Delete what a key holds; whether it held something.

        Raises:
            ConflictError: Another revision is there.
        """
        return await self._delete(key, revision)

    async def entries(self, prefix: str = "") -> AsyncIterator[Entry]:
        """Everything whose key begins with a prefix, in the order of keys."""
        after: dict[str, str] = {}
        while True:
            page = await self._ask("List", limit=_PAGE, prefix=prefix, **after)
            for entry in page.get("entries") or ():
                yield self._declared.read(entry)
            follows = page.get("next")
            if not isinstance(follows, str):
                return
            after = {"after": follows}
