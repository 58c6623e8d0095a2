"""State stores of a contract, kept by the authority (`trellis.state@v1`).

Whose state it is follows from the session.
"""

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from typing import Any, Final, Generic

from typing_extensions import TypeVar

from accord.fabric.link import Link
from accord.fabric.rules.errors import ConflictError, ValidationError
from accord.fabric.rules.models import RAW, Model
from accord.fabric.rules.terms import Migration, StateEntry, StateTerms, Terms, parse_json
from accord.kernel import canonical

_PAGE: Final = 200
_TRIES: Final = 20


T = TypeVar("T", default=Any)


class _StateStore(Generic[T]):
    def __init__(
        self,
        link: Link,
        terms: Terms,
        name: str,
        migrations: Mapping[str, Migration] | None = None,
        model: Model[T] = RAW,
    ) -> None:
        self._link = link
        self._model = model
        self._declared = StateTerms(terms, name, migrations)
        kind = "map" if isinstance(self, StateMap) else "value"
        if self._declared.is_map != (kind == "map"):
            raise ValidationError(f"the state store {name!r} is not a {kind}", where=terms.id)

    async def _ask(self, verb: str, key: str | None = None, **members: Any) -> dict[str, Any]:
        asked = {"store": self._declared.name, **members}
        if key is not None:
            asked["key"] = key
        answer = await self._link.request(f"rpc.v1.State.{verb}", canonical.encode(asked))
        body = parse_json(answer.data, "the answer")
        if not isinstance(body, dict):
            raise ValidationError("the answer is not a JSON object")
        return body

    async def _get(self, key: str | None) -> StateEntry[T] | None:
        entry = (await self._ask("Get", key)).get("entry")
        return None if entry is None else self._read(entry)

    def _read(self, entry: Mapping[str, Any]) -> StateEntry[T]:
        found = self._declared.read(entry)
        return replace(found, value=self._model.read(found.value, "the stored value"))

    async def _put(self, key: str | None, value: T, revision: int | None) -> int:
        written = self._model.write(value, "the value")
        self._declared.check(written)
        expected = {} if revision is None else {"expectedRevision": revision}
        answer = await self._ask("Put", key, value=written, **expected)
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

    async def _change(self, key: str | None, change: Callable[[T | None], T]) -> T:
        for _ in range(_TRIES):
            found = await self._get(key)
            value = change(None if found is None else found.value)
            try:
                await self._put(key, value, 0 if found is None else found.revision)
            except ConflictError:
                continue
            return value
        raise ConflictError("too many concurrent changes")


class StateValue(_StateStore[T]):
    """A state store of one value; `migrations` are functions by older version."""

    async def get(self) -> StateEntry[T] | None:
        """The stored value or None; raises ValidationError if it breaks the contract."""
        return await self._get(None)

    async def put(self, value: T, *, revision: int | None = None) -> int:
        """Store a value and return its revision; raises ValidationError if it breaks the contract.

        `revision` must be current, 0 for no value, else ConflictError; None writes unconditionally.
        """
        return await self._put(None, value, revision)

    async def change(self, change: Callable[[T | None], T]) -> T:
        """Store `change(value or None)`, retrying on conflicts; ConflictError after too many."""
        return await self._change(None, change)

    async def delete(self, *, revision: int | None = None) -> bool:
        """Delete the value; returns whether there was one. ConflictError if `revision` is old."""
        return await self._delete(None, revision)


class StateMap(_StateStore[T]):
    """A state store of values by key; its methods raise what those of `StateValue` raise."""

    async def get(self, key: str) -> StateEntry[T] | None:
        """The value of a key or None."""
        return await self._get(key)

    async def put(self, key: str, value: T, *, revision: int | None = None) -> int:
        """Store a value and return its revision; `revision` as in `StateValue.put`."""
        return await self._put(key, value, revision)

    async def change(self, key: str, change: Callable[[T | None], T]) -> T:
        """Store `change(value)`, or of None if there is no value, retrying on conflicts."""
        return await self._change(key, change)

    async def delete(self, key: str, *, revision: int | None = None) -> bool:
        """Delete a key and return whether it had a value."""
        return await self._delete(key, revision)

    async def entries(self, prefix: str = "") -> AsyncIterator[StateEntry[T]]:
        """All entries whose keys begin with a prefix, in key order."""
        after: dict[str, str] = {}
        while True:
            page = await self._ask("List", limit=_PAGE, prefix=prefix, **after)
            for entry in page.get("entries") or ():
                yield self._read(entry)
            follows = page.get("next")
            if not isinstance(follows, str):
                return
            after = {"after": follows}
