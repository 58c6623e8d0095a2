"""Twilio's own validator and ours say the same of every request, signed or tampered with."""

import hashlib
import random
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

from twilio.request_validator import RequestValidator  # type: ignore[import-untyped]

from accord.relay.platforms import sms

REQUESTS = 1000
LETTERS = "abzABZ019 &=+%/?#é€你👋\n"


class Form(dict[str, list[str]]):
    """What web frameworks hand to Twilio's validator."""

    def getall(self, name: str) -> list[str]:
        return self[name]


def word(chance: random.Random, least: int = 0) -> str:
    return "".join(chance.choices(LETTERS, k=chance.randint(least, 12)))


def address(chance: random.Random) -> str:
    port = chance.choice(["", "", ":443", ":80", ":8443"])
    query = chance.choice(["", "?a=1", "?b=%20x&a=2", "?bodySHA256=abc"])
    scheme = chance.choice(["https", "http"])
    return f"{scheme}://bots.example{port}/relay/{chance.randint(0, 99)}{query}"


def requests(seed: int) -> Iterator[tuple[random.Random, str, dict[str, list[str]], str]]:
    chance = random.Random(seed)
    for _ in range(REQUESTS):
        names = {word(chance, 1) for _ in range(chance.randint(0, 8))}
        form = {name: [word(chance) for _ in range(chance.choice([1, 1, 1, 2]))] for name in names}
        yield chance, address(chance), form, word(chance, 1)


def tampered(
    chance: random.Random, url: str, form: dict[str, list[str]], signature: str, token: str
) -> tuple[str, dict[str, list[str]], str, str]:
    """The request with one thing changed."""
    kind = chance.randrange(6)
    form = {name: list(values) for name, values in form.items()}
    if kind == 0 and form:
        name = chance.choice(sorted(form))
        form[name] = [*form[name][:-1], form[name][-1] + "!"]
    elif kind == 1 and form:
        del form[chance.choice(sorted(form))]
    elif kind == 2:
        form["Extra"] = ["1"]
    elif kind == 3:
        url = url.replace("/relay/", "/elsewhere/")
    elif kind == 4:
        token += "x"
    else:
        place = chance.randrange(len(signature))
        other = "A" if signature[place] != "A" else "B"
        signature = signature[:place] + other + signature[place + 1 :]
    return url, form, signature, token


def theirs(url: str, form: dict[str, list[str]], signature: str, token: str) -> bool:
    return bool(RequestValidator(token).validate(url, Form(form), signature))


def test_both_agree_on_a_thousand_forms_half_of_them_tampered_with() -> None:
    accepted = 0
    for chance, url, form, token in requests(1):
        signature = str(RequestValidator(token).compute_signature(url, Form(form)))
        assert sms.sign(url, form, token) == signature
        if chance.random() < 0.5:
            changed = tampered(chance, url, form, signature, token)
            assert not sms.is_signed(*changed)
        else:
            changed = (url, form, signature, token)
        answer = sms.is_signed(*changed)
        assert answer == theirs(*changed)
        accepted += answer
    assert 400 < accepted < 600


def test_what_we_sign_their_validator_takes_with_or_without_the_usual_port() -> None:
    for _, url, form, token in requests(2):
        assert theirs(url, form, sms.sign(url, form, token), token)
        usual = url.replace("https://bots.example/", "https://bots.example:443/")
        assert sms.is_signed(url, form, sms.sign(usual, form, token), token)
        assert theirs(url, form, sms.sign(usual, form, token), token)


def test_both_agree_on_a_thousand_json_bodies() -> None:
    accepted = 0
    for chance, _, form, token in requests(3):
        body = f'{{"Body":"{len(form)} é"}}'
        url = f"https://bots.example/x?bodySHA256={hashlib.sha256(body.encode()).hexdigest()}"
        signature = str(RequestValidator(token).compute_signature(url, {}))
        kind = chance.randrange(6)
        if kind == 0:
            body += " "
        elif kind == 1:
            url = url[:-1] + ("0" if url[-1] != "0" else "1")
        elif kind == 2:
            signature = signature[::-1]
        answer = sms.is_signed_json(url, body.encode(), signature, token)
        assert answer == bool(RequestValidator(token).validate(url, body, signature))
        assert answer == (kind > 2)
        accepted += answer
    assert 400 < accepted < 600


def test_forms_are_read_as_they_were_written() -> None:
    for _, _, form, _ in requests(4):
        read: sms.Fields = sms.read_form(urlencode(form, doseq=True).encode())
        assert read == form


def test_no_url_makes_the_verification_fail_in_any_other_way() -> None:
    odd: list[Any] = ["", "https://[", "https://a:b/", "https://a:99999/", "//", "é\ud800"]
    for url in odd:
        assert sms.is_signed(url, {"a": ["\ud800"]}, "x", "token") is False
        assert sms.is_signed_json(url + "?" + "a=1&" * 200, b"", "x", "token") is False
