"""What a blob's manifest must be."""

from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from accord.capabilities.file import CHUNK, MAX_CHUNKS, Manifest, check_cid, cid_of, read_manifest
from accord.community.errors import Code, CommunityError
from accord.kernel import canonical

CID = st.binary(max_size=8).map(cid_of)


@given(st.lists(CID, min_size=1, max_size=5), st.integers(1, CHUNK))
def test_a_manifest_reads_back_as_itself(chunks: list[str], last: int) -> None:
    manifest = Manifest.of((len(chunks) - 1) * CHUNK + last, chunks)
    assert read_manifest(manifest.payload()) == manifest
    assert read_manifest(canonical.decode(manifest.content)) == manifest
    assert manifest.cid == "blake3:" + blake3(manifest.content).hexdigest()
    assert sum(map(manifest.length, range(len(chunks)))) == manifest.size_bytes


@given(st.lists(CID, min_size=2, max_size=5, unique=True))
def test_the_order_of_chunks_is_part_of_the_name(chunks: list[str]) -> None:
    size = len(chunks) * CHUNK
    assert Manifest.of(size, chunks).cid != Manifest.of(size, chunks[::-1]).cid


def test_the_greatest_blob_has_a_manifest_that_fits_into_a_frame() -> None:
    manifest = Manifest.of(MAX_CHUNKS * CHUNK, [cid_of(b"")] * MAX_CHUNKS)
    assert len(manifest.content) < 8 * 1024 * 1024
    with pytest.raises(CommunityError) as refused:
        Manifest.of(MAX_CHUNKS * CHUNK + 1, [cid_of(b"")] * (MAX_CHUNKS + 1))
    assert refused.value.code is Code.BAD_REQUEST


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5) | CID,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["cid", "size_bytes", "chunks", "chunk_size_bytes", "i"]), inner
            )
        ),
        max_leaves=10,
    )
)
def test_whatever_is_no_manifest_is_refused(value: Any) -> None:
    try:
        manifest = read_manifest(value)
    except CommunityError as error:
        assert error.code is Code.BAD_REQUEST
    else:
        assert value["size_bytes"] == manifest.size_bytes


@given(st.text(max_size=80))
def test_a_name_that_is_no_cid_never_becomes_a_path(text: str) -> None:
    with pytest.raises(CommunityError) as refused:
        check_cid(text)
    assert refused.value.code is Code.BAD_REQUEST
