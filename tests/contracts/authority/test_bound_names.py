"""Names that stand in subjects: none may stand for more than itself."""

import pytest

from accord.contracts import Bindings, ContractError
from accord.contracts.permissions import ConsumerBinding, QueueBinding, inbox_prefix, session_prefix

KEY = "0123456789abcdefGHIJKLMNOPQRSTUVWXYZ-_abcde"


def test_the_first_sixteen_characters_of_a_session_key_stand_in_subjects() -> None:
    assert session_prefix(KEY) == "0123456789abcdef"
    assert inbox_prefix(KEY) == "_INBOX.0123456789abcdef"


@pytest.mark.parametrize(
    "key", ["", "short", "*" * 43, "a.b" * 15, ">" + KEY, KEY + "\n", KEY + "="]
)
def test_a_session_key_that_could_widen_the_inbox_is_refused(key: str) -> None:
    with pytest.raises(ContractError):
        inbox_prefix(key)


@pytest.mark.parametrize("name", ["", "*", ">", "a.b", "a b", "a\n", "x" * 256, "{stream}"])
def test_a_binding_that_could_stand_for_more_is_refused(name: str) -> None:
    for make in (
        lambda: Bindings(kv={"k": name}),
        lambda: Bindings(store={"s": name}),
        lambda: Bindings(operations=name),
        lambda: ConsumerBinding("EVENTS", name),
        lambda: ConsumerBinding(name, "c"),
        lambda: QueueBinding(name, "q", "c"),
        lambda: QueueBinding("n", name, "c"),
        lambda: QueueBinding("n", "q", name),
        lambda: QueueBinding("n", "q", "c", key_bucket=name),
    ):
        with pytest.raises(ContractError):
            make()
