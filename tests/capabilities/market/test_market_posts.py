"""Which posts are shown, and how they are found."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.capabilities.market.conftest import WordEmbedder

from accord.capabilities.market import (
    PostSearch,
    client_id_for,
    is_posted_for,
    matches,
    page,
    rank_by_words,
    show_post,
)

LAMPORTS = st.lists(st.integers(0, 12), max_size=30).map(sorted)


def post(number: int, lamport: int, **members: Any) -> dict[str, Any]:
    return {
        "event_id": f"{number:026}",
        "lamport": lamport,
        "author": "ed25519:a",
        "category": "info",
        "title": f"Post {number}",
        "body": "",
        "tags": [],
        **members,
    }


@given(LAMPORTS, st.integers(1, 10))
def test_whoever_pages_on_sees_every_post_once(lamports: list[int], limit: int) -> None:
    posts = [post(number, lamport) for number, lamport in enumerate(lamports)]
    head = max(lamports, default=0) + 1
    seen: list[dict[str, Any]] = []
    since = -1
    while True:
        some, since = page([each for each in posts if each["lamport"] > since], limit, head)
        seen += some
        if since == head:
            break
    assert seen == posts


@given(LAMPORTS, st.integers(1, 10))
def test_a_page_is_longer_than_asked_for_only_where_one_lamport_fills_it(
    lamports: list[int], limit: int
) -> None:
    posts = [post(number, lamport) for number, lamport in enumerate(lamports)]
    some, _ = page(posts, limit, 100)
    assert len(some) <= limit or len({each["lamport"] for each in some}) == 1


def test_a_post_without_tags_has_none() -> None:
    bare = {name: value for name, value in post(1, 1).items() if name != "tags"}
    assert show_post(bare)["tags"] == []
    assert matches(bare, None, ())
    assert not matches(bare, None, ("water",))


@given(st.text(min_size=1, max_size=64), st.text(min_size=1, max_size=64), st.booleans())
def test_posts_made_for_others_are_told_apart(one: str, other: str, same: bool) -> None:
    caller = "ed25519:" + "a" * 43
    somebody = "ed25519:" + "b" * 43
    mine = client_id_for(caller, one)
    assert len(mine) <= 64
    assert is_posted_for(caller, mine)
    assert not is_posted_for(somebody, mine)
    assert (client_id_for(caller, other) == mine) is (one == other)
    assert client_id_for(somebody, one) != mine
    assert not is_posted_for(caller, one) or one.startswith("~")


@given(st.text(max_size=40), st.lists(st.text(max_size=40), max_size=8))
def test_words_score_from_nothing_to_all(query: str, texts: list[str]) -> None:
    scores = rank_by_words(query, texts)
    assert len(scores) == len(texts)
    assert all(0 <= score <= 1.000001 for score in scores)


def test_rare_words_count_more_than_common_ones() -> None:
    texts = ["the water", "the ladder", "the bread", "the"]
    scores = rank_by_words("the ladder", texts)
    assert scores[1] == pytest.approx(1)
    assert scores[0] == scores[2] == scores[3] < 0.5
    assert rank_by_words("WATER!", texts)[0] == pytest.approx(1)


async def test_without_a_model_posts_are_found_by_words_and_the_answer_says_so() -> None:
    search = PostSearch(None)
    posts = [
        post(1, 1, title="Water cans"),
        post(2, 2, title="A ladder"),
        post(3, 3, title="Old news", tags=["water"]),
    ]
    found = await search.best("water", posts, 10)
    assert search.ranking == "words"
    assert [each["lamport"] for each in found] == [3, 1]  # of equals the newest first
    assert await search.best("!!!", posts, 10) == []
    assert await search.best("water", [], 10) == []


async def test_a_post_is_embedded_once_and_anew_when_it_says_something_else() -> None:
    embedder = WordEmbedder()
    search = PostSearch(embedder)
    posts = [post(number, number, title=f"word{number}") for number in range(100)]
    best = await search.best("word7", posts, 1)
    assert best[0]["event_id"] == posts[7]["event_id"]
    assert len(embedder.texts) == 101
    await search.best("word8", posts, 1)
    assert len(embedder.texts) == 102
    posts[3] = {**posts[3], "title": "changed"}
    await search.best("changed", posts, 1)
    assert len(embedder.texts) == 104
