"""Where a login may end."""

from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accord.authority.rules import AuthorityError, clients


@pytest.mark.parametrize(
    ("url", "origin"),
    [
        ("https://App.Example/a?b=c", "https://app.example"),
        ("https://app.example:443/", "https://app.example"),
        ("https://app.example:8443", "https://app.example:8443"),
        ("http://localhost:3000/callback?next=%2Fdash", "http://localhost:3000"),
        ("http://127.0.0.1:80/", "http://127.0.0.1"),
        ("http://[::1]:9/x", "http://[::1]:9"),
    ],
)
def test_an_address_has_the_origin_that_browsers_see(url: str, origin: str) -> None:
    assert clients.origin(url) == origin


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/login",
        "//app.example/",
        "javascript:alert(1)",
        "data:text/html,x",
        "ftp://app.example/",
        "http://app.example/",
        "http://127.0.0.1.evil.example/",
        "https://user@app.example/",
        "https://app.example#fragment",
        "https://app.example:99999/",
        "https://app.example:x/",
        "https://app.example/ x",
        "https://app.example/\r\nset-cookie: a=b",
        "https://app.example;script-src/",
        "https://a'b/",
        "https://[::1/",
        "https://\u0430pp.example/",
        "https://app.example/" + "x" * 2000,
    ],
)
def test_a_login_ends_nowhere_else(url: str) -> None:
    with pytest.raises(AuthorityError):
        clients.origin(url)


@given(st.text(max_size=60))
def test_an_origin_can_stand_in_a_header(text: str) -> None:
    for url in (text, f"https://{text}", f"https://app.example{text}"):
        try:
            origin = clients.origin(url)
        except AuthorityError:
            continue
        assert not set(origin) & set(" ;,'\"\r\n")
        assert urlsplit(origin).path == ""


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4), st.text(max_size=20))
def test_a_query_keeps_what_it_had(members: dict[str, str], flow: str) -> None:
    base = "https://app.example/"
    for name, value in members.items():
        base = clients.with_query(base, **{name: value})
    told = parse_qs(urlsplit(clients.with_query(base, flowId=flow)).query, keep_blank_values=True)
    assert told == {**{name: [value] for name, value in members.items()}, "flowId": [flow]}
