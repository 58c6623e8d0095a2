"""What people say to link an account."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.relay.rules import (
    LINK_CODE_BITS,
    LinkCommand,
    find_link_codes,
    read_link_request,
    write_link_code,
)

CODE = "ABCDE-12345"
BARE = "ABCDE12345"


@pytest.mark.parametrize(
    ("text", "command", "code"),
    [
        (f"/link {CODE}", LinkCommand.LINK, BARE),
        (f"  /LINK@our_bot\n{CODE.lower()} ", LinkCommand.LINK, BARE),
        ("/link abcdeI2345", LinkCommand.LINK, "ABCDE12345"),
        (f"/link {CODE} please", LinkCommand.LINK, BARE),
        ("/link", LinkCommand.LINK, None),
        ("/link my account", LinkCommand.LINK, None),
        ("/link " + "x" * 100_000, LinkCommand.LINK, None),
        ("/unlink", LinkCommand.UNLINK, None),
        ("/unlink now", LinkCommand.UNLINK, None),
    ],
)
def test_commands_in_a_direct_message(text: str, command: LinkCommand, code: str | None) -> None:
    request = read_link_request(text, is_dm=True, awaiting=False)
    assert request is not None
    assert (request.command, request.code) == (command, code)


@pytest.mark.parametrize(
    ("text", "command", "agent"),
    [
        ("/agents", LinkCommand.AGENTS, None),
        (" /Agents@our_bot please", LinkCommand.AGENTS, "please"),
        ("/default", LinkCommand.DEFAULT, None),
        ("/default  My   agent ", LinkCommand.DEFAULT, "My agent"),
        ("/default “Echo”", LinkCommand.DEFAULT, "Echo"),
        ("/unlink 2", LinkCommand.UNLINK, "2"),
        ("/unlink " + "x" * 100_000, LinkCommand.UNLINK, "x" * 511),
        ("/help", LinkCommand.HELP, None),
        ("/help ", LinkCommand.HELP, None),
    ],
)
def test_people_name_agents_in_a_direct_message_only(
    text: str, command: LinkCommand, agent: str | None
) -> None:
    request = read_link_request(text, is_dm=True, awaiting=False)
    assert request is not None
    assert (request.command, request.agent) == (command, agent)
    assert read_link_request(text, is_dm=False, awaiting=False) is None


def test_help_about_something_is_an_agents() -> None:
    assert read_link_request("/help me with this", is_dm=True, awaiting=False) is None


@pytest.mark.parametrize(
    "text", ["", "link me", "/linkage", "/unlinked", "say /link " + CODE, "yes", "no", "/links x"]
)
def test_other_messages_are_other_messages(text: str) -> None:
    assert read_link_request(text, is_dm=True, awaiting=False) is None


def test_an_answer_counts_only_where_one_was_asked_for() -> None:
    yes = read_link_request(" Yes ", is_dm=True, awaiting=True)
    no = read_link_request("cancel", is_dm=True, awaiting=True)
    assert yes is not None
    assert no is not None
    assert (yes.command, no.command) == (LinkCommand.CONFIRM, LinkCommand.DECLINE)
    assert read_link_request("yes", is_dm=False, awaiting=True) is None
    assert read_link_request("yes, but what is it?", is_dm=True, awaiting=True) is None


def test_a_code_shown_in_a_group_is_burned() -> None:
    request = read_link_request(f"/link {CODE}", is_dm=False, awaiting=False)
    assert request is not None
    assert (request.command, request.code) == (LinkCommand.BURN, BARE)
    assert read_link_request("/link", is_dm=False, awaiting=False) is None
    assert read_link_request("/unlink", is_dm=False, awaiting=False) is None
    assert find_link_codes(f"mine is {CODE}, or was it {BARE}?") == (BARE, BARE)
    assert find_link_codes("nothing here: ABCDE-12345-67890 ABCDEFGHIJKL") == ()


def test_a_code_is_not_shown_by_accident() -> None:
    assert BARE not in repr(read_link_request(f"/link {CODE}", is_dm=True, awaiting=False))


@given(st.integers(0, 2**LINK_CODE_BITS - 1), st.integers(0, 2**LINK_CODE_BITS - 1))
def test_codes_are_recognised_and_never_share_a_spelling(one: int, other: int) -> None:
    spelled = []
    for chance in (one, other):
        request = read_link_request(
            f"/link {write_link_code(chance).lower()}", is_dm=True, awaiting=False
        )
        assert request is not None
        assert request.code is not None
        assert find_link_codes(f"({write_link_code(chance)})") == (request.code,)
        spelled.append(request.code)
    assert (spelled[0] == spelled[1]) == (one == other)


def test_only_a_few_codes_are_looked_for() -> None:
    assert len(find_link_codes(f"{CODE} " * 100_000)) == 8


@given(st.text(max_size=60), st.booleans(), st.booleans())
def test_no_text_raises(text: str, is_dm: bool, awaiting: bool) -> None:
    read_link_request(text, is_dm=is_dm, awaiting=awaiting)
    find_link_codes(text)
