"""Secrets at rest."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.relay.connector import Box, Keyring
from accord.relay.errors import RelayError

RING = Keyring([b"k" * 32, b"o" * 32])


@given(st.text(), st.lists(st.text(max_size=5), min_size=1, max_size=4))
def test_what_was_closed_opens_in_its_context_and_in_no_other(
    value: str, context: list[str]
) -> None:
    box = RING.close(value, *context)
    assert RING.open(box, *context) == value
    for other in (context[:-1], [*context, ""], [*context[:-1], context[-1] + "x"]):
        with pytest.raises(RelayError):
            RING.open(box, *other)


@given(st.binary(max_size=80), st.sampled_from([RING.key_id, "nobody", ""]))
def test_garbage_does_not_open(data: bytes, key_id: str) -> None:
    with pytest.raises(RelayError):
        RING.open(Box(key_id, data), "x")


def test_two_boxes_of_one_value_differ() -> None:
    assert RING.close("v", "x").data != RING.close("v", "x").data


def test_the_file_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "relay.key"
    first = Keyring.load(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert Keyring.load(path).open(first.close("v", "x"), "x") == "v"
    assert [each.name for each in tmp_path.iterdir()] == ["relay.key"]


@pytest.mark.parametrize(
    ("content", "mode"),
    [(b"", 0o600), (b"short\n", 0o600), (b"\xff\xfe", 0o600), (b"A" * 43 + b"\n", 0o644)],
)
def test_a_file_that_is_damaged_or_open_to_others_is_refused(
    tmp_path: Path, content: bytes, mode: int
) -> None:
    path = tmp_path / "relay.key"
    path.write_bytes(content)
    path.chmod(mode)
    with pytest.raises(RelayError) as refused:
        Keyring.load(path)
    assert "AAAA" not in str(refused.value)
    assert path.read_bytes() == content


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(RelayError):
        Keyring.load(tmp_path / "nowhere" / "relay.key")


def test_a_rotation_is_seen_by_a_process_that_holds_the_old_ring(tmp_path: Path) -> None:
    old = Keyring.load(tmp_path / "relay.key")
    before = old.close("before", "x")
    new = Keyring.load(tmp_path / "relay.key")
    assert new.rotate() == new.key_id != before.key_id
    assert new.open(before, "x") == "before"
    assert old.open(new.close("after", "x"), "x") == "after"
    new.forget_old()
    with pytest.raises(RelayError):
        new.open(before, "x")


def test_a_process_that_runs_encrypts_by_the_new_key_at_once(tmp_path: Path) -> None:
    running = Keyring.load(tmp_path / "relay.key")
    operator = Keyring.load(tmp_path / "relay.key")
    operator.rotate()
    assert running.close("v", "x").key_id == operator.key_id
    assert running.older == operator.older != ()


def test_a_prepared_key_decrypts_and_encrypts_only_after_the_rotation(tmp_path: Path) -> None:
    here, there = tmp_path / "here.key", tmp_path / "there.key"
    ring = Keyring.load(here)
    before, made = ring.key_id, ring.prepare()
    assert (ring.key_id, ring.prepared) == (before, made)
    there.write_bytes(here.read_bytes())
    there.chmod(0o600)
    other = Keyring.load(there)
    assert ring.rotate() == made
    assert ring.prepared is None
    # The other machine has not been given the new file, and both understand each other.
    assert other.open(ring.close("v", "x"), "x") == "v"
    assert ring.open(other.close("v", "x"), "x") == "v"
    assert other.close("v", "x").key_id == before


def test_a_key_file_that_vanishes_or_is_damaged_stops_nobody_who_has_its_keys(
    tmp_path: Path,
) -> None:
    path = tmp_path / "relay.key"
    ring = Keyring.load(path)
    box = ring.close("v", "x")
    path.write_bytes(b"nonsense")
    assert ring.open(ring.close("v", "x"), "x") == "v"
    path.unlink()
    assert ring.close("v", "x").key_id == box.key_id
    with pytest.raises(RelayError):
        ring.rotate()


@pytest.mark.parametrize("lines", [["+", "key"], ["key", "+key", "+key"], ["+key"], ["key", "+x"]])
def test_a_file_with_a_wrong_prepared_key_is_refused(tmp_path: Path, lines: list[str]) -> None:
    path = tmp_path / "relay.key"
    path.write_text("\n".join(line.replace("key", "A" * 43) for line in lines))
    path.chmod(0o600)
    with pytest.raises(RelayError):
        Keyring.load(path)


def test_codes_are_found_after_a_rotation(tmp_path: Path) -> None:
    ring = Keyring.load(tmp_path / "relay.key")
    kept = ring.digests("CODE")[0]
    ring.rotate()
    assert kept in ring.digests("CODE")
    assert kept != ring.digests("CODE")[0]


def test_the_ring_shows_no_key() -> None:
    assert "k" * 8 not in repr(RING)
    assert str(b"k" * 8) not in repr(RING)


def test_endless_rotation_is_refused(tmp_path: Path) -> None:
    ring = Keyring.load(tmp_path / "relay.key")
    for _ in range(15):
        ring.rotate()
    with pytest.raises(RelayError):
        ring.rotate()
    assert Keyring.load(tmp_path / "relay.key").key_id == ring.key_id
