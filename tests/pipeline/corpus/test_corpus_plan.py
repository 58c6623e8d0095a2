"""What a build has to do, decided without any document or Spark."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from accord.pipeline.corpus import plan

CIDS = st.sampled_from([None, *(f"blake3:{number:064x}" for number in range(4))])
NAMES = st.sampled_from(["a.md", "b/a.md", "b.txt", "", ".", "tab\there.md", "half\ud800.md", "c"])
SEEN = st.lists(
    st.builds(plan.FoundDocument, NAMES, CIDS, st.sampled_from([None, None, None, "it is locked"])),
    max_size=12,
)


@given(SEEN)
def test_every_document_is_made_or_the_same_as_another_or_refused(
    seen: list[plan.FoundDocument],
) -> None:
    made = plan.plan_build(seen, plan.DocumentDefaults(), ())
    names = [*(each.name for each in made.orders), *(each.name for each in made.refused)]
    names += made.same
    assert sorted(names) == sorted(each.name for each in seen)
    taken = [each.wanted.doc_cid for each in made.orders]
    assert len(set(taken)) == len(taken)
    assert all(each.reason for each in made.refused)


@given(SEEN, st.randoms())
def test_the_order_in_which_documents_are_found_means_nothing(
    seen: list[plan.FoundDocument], random: Random
) -> None:
    mixed = list(seen)
    random.shuffle(mixed)
    first, other = (
        plan.plan_build(seen, plan.DocumentDefaults(), ()),
        plan.plan_build(mixed, plan.DocumentDefaults(), ()),
    )
    assert first.orders == other.orders
    assert first.kept == other.kept


@given(SEEN)
def test_what_was_made_is_not_made_again_unless_something_else_is_told_of_it(
    seen: list[plan.FoundDocument],
) -> None:
    first = plan.plan_build(seen, plan.DocumentDefaults(), ())
    known = {each.key for each in first.orders}
    again = plan.plan_build(seen, plan.DocumentDefaults(), known)
    assert not again.orders
    assert set(again.kept) == known
    for told in (plan.DocumentDefaults("de"), plan.DocumentDefaults(None, {"year": 2024})):
        assert len(plan.plan_build(seen, told, known).orders) == len(first.orders)


def test_a_title_is_the_name_without_folders_and_ending() -> None:
    assert plan.title_of("manuals/rain water.v2.md") == "rain water.v2"
    assert plan.title_of("x" * 600 + ".txt") == "x" * 500


def test_a_document_under_another_name_has_another_key() -> None:
    cid = "blake3:" + "0" * 64
    (one,), (other,) = (
        plan.plan_build([plan.FoundDocument(name, cid)], plan.DocumentDefaults(), ()).orders
        for name in ("a.md", "b.md")
    )
    assert one.key != other.key
    assert one.key == plan.document_key(one.wanted)
