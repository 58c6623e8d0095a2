"""Many callers share one model."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from accord.capabilities import embed
from accord.capabilities.models import Embedder


class Slow:
    """A model that waits until it is let go, and remembers what it was asked."""

    model = "slow"
    dimensions = 2

    def __init__(self) -> None:
        self.rounds: list[list[str]] = []
        self.go = threading.Event()
        self.go.set()

    def vectors(self, texts: Sequence[str]) -> Any:
        self.rounds.append(list(texts))
        assert self.go.wait(30)
        if "break" in texts:
            raise RuntimeError("it broke")
        return np.array([[len(text), 1] for text in texts], np.float32)

    async def is_asked(self) -> None:
        for _ in range(3000):
            if self.rounds:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("it was not asked")


async def test_what_comes_while_one_round_is_computed_is_the_next_round() -> None:
    slow = Slow()
    slow.go.clear()
    async with embed.open_batcher(slow, remembered=100) as embedder:
        first = asyncio.create_task(embedder.raw(["a"]))
        await slow.is_asked()
        others = [asyncio.create_task(embedder.raw([f"b{n}", "c", "a"])) for n in range(20)]
        await asyncio.sleep(0)
        slow.go.set()
        await first
        rows = await asyncio.gather(*others)
    assert len(slow.rounds) == 2
    assert sorted(slow.rounds[1]) == sorted([*(f"b{n}" for n in range(20)), "c"])
    assert all(found[2].tolist() == [1, 1] for found in rows)


async def test_a_text_is_computed_once_and_remembered_up_to_a_number() -> None:
    slow = Slow()
    async with embed.open_batcher(slow, remembered=2) as embedder:
        await embedder.raw(["a", "bb", "a", "bb"])
        assert slow.rounds == [["a", "bb"]]
        await embedder.raw(["bb", "a"])
        assert len(slow.rounds) == 1
        await embedder.raw(["ccc"])
        await embedder.raw(["a"])
        assert slow.rounds == [["a", "bb"], ["ccc"]]
        await embedder.raw(["bb"])
        assert slow.rounds[-1] == ["bb"], "the one not asked for longest was forgotten"


async def test_rows_have_length_one_and_keep_their_order() -> None:
    async with embed.open_batcher(Slow(), remembered=0) as batcher:
        embedder: Embedder = batcher
        rows = await embedder.embed(["aaaa", "a", "aa"])
        assert np.allclose(np.linalg.norm(rows, axis=1), 1)
        assert (np.diff(rows[[1, 2, 0], 0]) > 0).all()
        assert (await embedder.embed([])).shape == (0, 2)


async def test_a_round_that_fails_fails_for_its_callers_only() -> None:
    async with embed.open_batcher(Slow(), remembered=10) as embedder:
        with pytest.raises(RuntimeError, match="it broke"):
            await embedder.embed(["break"])
        assert (await embedder.raw(["after"])).tolist() == [[5, 1]]


async def test_half_a_character_spoils_nothing() -> None:
    slow = Slow()
    async with embed.open_batcher(slow, remembered=10) as embedder:
        assert (await embedder.raw(["\ud800"])).shape == (1, 2)
    assert slow.rounds == [["?"]]


async def test_a_caller_that_leaves_takes_nothing_from_the_others() -> None:
    slow = Slow()
    slow.go.clear()
    async with embed.open_batcher(slow, remembered=10) as embedder:
        leaving = asyncio.create_task(embedder.raw(["same"]))
        staying = asyncio.create_task(embedder.raw(["same"]))
        await slow.is_asked()
        leaving.cancel()
        slow.go.set()
        assert (await staying).tolist() == [[4, 1]]


async def test_whoever_waits_at_the_end_is_told() -> None:
    slow = Slow()
    slow.go.clear()
    async with embed.open_batcher(slow, remembered=10) as embedder:
        running = asyncio.create_task(embedder.raw(["a"]))
        await slow.is_asked()
        waiting = asyncio.create_task(embedder.raw(["b"]))
        await asyncio.sleep(0)
    slow.go.set()
    for task in (running, waiting):
        with pytest.raises(asyncio.CancelledError):
            await task
