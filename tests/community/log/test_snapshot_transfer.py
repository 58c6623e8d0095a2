"""A snapshot travels in parts: each is verified, and an interrupted fetch goes on where it was."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.histories import realistic

from accord.community import snapshots
from accord.community.errors import Code, CommunityError
from accord.community.rules import Snapshot, fold_events, read_snapshot, sign_snapshot, state_bytes
from accord.community.snapshots import SnapshotServer, fetch_snapshot, fetch_voucher
from accord.kernel import canonical
from accord.kernel.signing import SigningKey

PART = 4096
KEY, OTHER = (SigningKey.from_seed(bytes([number]) * 32) for number in (7, 8))
NOW = "2026-01-02T03:04:05Z"


@pytest.fixture(scope="module")
def state() -> tuple[str, bytes]:
    community_id, events = realistic(400)
    return community_id, state_bytes(fold_events(events, community_id).state)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "PART_BYTES", PART)


class Serving:
    """A client of a node with one snapshot; a test changes what it answers."""

    def __init__(self, snapshot: Snapshot, monkeypatch: pytest.MonkeyPatch) -> None:
        self.community = snapshot.community_id
        self.snapshot: Snapshot | None = snapshot
        self.asked: list[Any] = []
        self.breaks_after: int | None = None
        self.damaged: list[int] = []
        self._server = SnapshotServer()

        async def offered(_log: Any, lamport: int | None) -> Snapshot | None:
            is_it = self.snapshot is not None and lamport in (None, self.snapshot.lamport)
            return self.snapshot if is_it else None

        monkeypatch.setattr(snapshots, "offered_snapshot", offered)

    async def post(self, _path: str, body: dict[str, Any]) -> Any:
        if self.breaks_after is not None and len(self.asked) >= self.breaks_after:
            raise CommunityError(Code.PARTITION, "the line broke")
        self.asked.append(body.get("offset"))
        log: Any = type("Log", (), {"community_id": self.community})
        answer = dict(await self._server.answer(log, body))
        if "data_b64" in answer and answer["offset"] // PART in self.damaged:
            self.damaged.remove(answer["offset"] // PART)
            answer["data_b64"] = canonical.encode_base64url(b"x" * PART)
        return answer


def signed(state: tuple[str, bytes], key: SigningKey = KEY, lamport: int = 1000) -> Snapshot:
    return sign_snapshot(
        key, community_id=state[0], lamport=lamport, wall_clock=NOW, state=state[1]
    )


def left_in(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()]


async def fetched(serving: Any, folder: Path | None = None) -> Snapshot | None:
    return await fetch_snapshot(serving, None, folder=folder)


def test_a_snapshot_is_written_and_read_as_plain_json_would_be(state: tuple[str, bytes]) -> None:
    snapshot = signed(state)
    raw = snapshot.encode()
    assert canonical.encode(canonical.decode(raw, max_bytes=1 << 30)) == raw
    assert read_snapshot(raw, state[0]) == snapshot
    # The same with other white space is read, too, but not cut out.
    assert read_snapshot(raw.replace(b'"state":', b'"state": ', 1), state[0]) == snapshot
    for forged in (
        replace(snapshot, lamport=999),
        replace(snapshot, author=OTHER.id),
        replace(snapshot, signature="ed25519:" + "A" * 86),
        replace(snapshot, signature="none"),
    ):
        assert not forged.is_signed
        with pytest.raises(CommunityError):
            read_snapshot(forged.encode(), state[0])
    with pytest.raises(CommunityError):
        read_snapshot(raw[:-1], state[0])


@pytest.mark.parametrize("written", [0, 5])
async def test_a_disk_that_is_full_ends_no_fetch(
    state: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, written: int
) -> None:
    serving = Serving(signed(state), monkeypatch)
    folder = tmp_path / "community"
    folder.mkdir()
    answer = serving.post

    async def post(path: str, body: dict[str, Any]) -> Any:
        if len(serving.asked) == written:
            # Whatever is written from here on fails.
            folder.rename(tmp_path / "gone")
        return await answer(path, body)

    monkeypatch.setattr(serving, "post", post)
    assert await fetched(serving, folder) == serving.snapshot


async def test_an_interrupted_fetch_goes_on_with_the_next_part(
    state: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serving = Serving(signed(state), monkeypatch)
    serving.breaks_after = 5
    with pytest.raises(CommunityError, match="broke"):
        await fetched(serving, tmp_path)
    assert serving.asked == [number * PART for number in range(5)]
    serving.breaks_after = None
    serving.asked.clear()
    found = await fetched(serving, tmp_path)
    assert found == serving.snapshot
    assert serving.asked[0] == 5 * PART
    assert left_in(tmp_path) == []


async def test_what_was_damaged_on_the_disk_is_fetched_again(
    state: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serving = Serving(signed(state), monkeypatch)
    serving.breaks_after = 5
    with pytest.raises(CommunityError):
        await fetched(serving, tmp_path)
    file = tmp_path / "snapshot.part"
    raw = bytearray(file.read_bytes())
    raw[2 * PART + 7] ^= 1
    file.write_bytes(raw + b"and a torn part")
    serving.breaks_after = None
    serving.asked.clear()
    assert await fetched(serving, tmp_path) == serving.snapshot
    assert serving.asked[0] == 2 * PART


@pytest.mark.parametrize("left", [b"", b"not a plan", b'{"lamport":1}'])
async def test_a_damaged_plan_begins_anew(
    left: bytes, state: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "snapshot.plan").write_bytes(left)
    (tmp_path / "snapshot.part").write_bytes(b"x" * PART)
    serving = Serving(signed(state), monkeypatch)
    assert await fetched(serving, tmp_path) == serving.snapshot
    assert left_in(tmp_path) == []


async def test_if_the_node_has_another_snapshot_by_now_that_one_is_fetched(
    state: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serving = Serving(signed(state), monkeypatch)
    serving.breaks_after = 5
    with pytest.raises(CommunityError):
        await fetched(serving, tmp_path)
    serving.breaks_after = None
    serving.snapshot = signed(state, lamport=2000)
    serving._server = SnapshotServer()
    assert await fetched(serving, tmp_path) == serving.snapshot
    serving.snapshot = None
    serving._server = SnapshotServer()
    assert await fetched(serving, tmp_path) is None


async def test_a_damaged_part_is_asked_for_again_and_not_for_ever(
    state: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    serving = Serving(signed(state), monkeypatch)
    serving.damaged = [0, 3, 3]
    assert await fetched(serving, tmp_path) == serving.snapshot
    assert serving.asked.count(3 * PART) == 3
    assert serving.asked.count(4 * PART) == 1
    serving.damaged = [3] * 9
    with pytest.raises(CommunityError, match="not what it should be"):
        await fetched(serving, tmp_path)
    # What was good is kept.
    assert (tmp_path / "snapshot.part").stat().st_size == 3 * PART


async def test_a_second_anchor_sends_its_signature_and_not_the_state(
    state: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = signed(state)
    serving: Any = Serving(signed(state, OTHER), monkeypatch)
    found = await fetch_voucher(serving, first)
    assert found == signed(state, OTHER)
    assert serving.asked == [0]
    # One that signed another state, or none, does not vouch.
    another = replace(first, state=first.state.replace(b'"name":"', b'"name":"x'))
    assert await fetch_voucher(serving, another) is None
    serving.snapshot, serving._server = None, SnapshotServer()
    assert await fetch_voucher(serving, first) is None


@pytest.mark.parametrize(
    "answer",
    [
        {"state_digest": 1, "author": "", "wall_clock": NOW, "signature": ""},
        {"state_digest": "x", "author": "a", "wall_clock": "today", "signature": ""},
        {"state_digest": "x"},
        [],
    ],
)
async def test_a_malformed_voucher_is_refused(answer: Any, state: tuple[str, bytes]) -> None:
    class Telling:
        community = state[0]

        async def post(self, _path: str, _body: Any) -> Any:
            return answer

    client: Any = Telling()
    with pytest.raises(CommunityError):
        await asyncio.wait_for(fetch_voucher(client, signed(state)), 5)


async def test_a_voucher_with_a_wrong_signature_is_refused(
    state: tuple[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    forged = replace(signed(state, OTHER), wall_clock="2020-01-01T00:00:00Z")
    serving: Any = Serving(forged, monkeypatch)
    with pytest.raises(CommunityError) as refused:
        await fetch_voucher(serving, signed(state))
    assert refused.value.code is Code.INVALID_SIGNATURE
