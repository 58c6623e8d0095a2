"""The HTML of the pages: small, without scripts and external resources, everything escaped."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from typing import Final

from accord.authority.http.exchange import FORM_FIELD
from accord.authority.identities import Access, Consent, DeviceActivation, Person, Review

STYLE: Final = (files(__package__) / "style.css").read_text(encoding="utf-8")

_SHAPE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<link rel="stylesheet" href="/login/style.css">
</head>
<body><main>
<h1>{title}</h1>
{body}
</main></body>
</html>
"""


def page(title: str, *parts: str) -> str:
    """A whole page; the parts are HTML."""
    return _SHAPE.format(title=escape(title), body="\n".join(parts))


def paragraph(text: str, kind: str = "") -> str:
    """A paragraph."""
    return f'<p class="{escape(kind)}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def form(action: str, token: str, *fields: str, hidden: Mapping[str, str] | None = None) -> str:
    """A form with its token."""
    members = {FORM_FIELD: token, **(hidden or {})}
    kept = "".join(
        f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">'
        for name, value in members.items()
    )
    return f'<form method="post" action="{escape(action)}">{kept}{"".join(fields)}</form>'


def field(label: str, name: str, kind: str, complete: str, value: str = "") -> str:
    """A labelled field."""
    return (
        f'<label>{escape(label)}<input name="{escape(name)}" type="{escape(kind)}" '
        f'autocomplete="{escape(complete)}" value="{escape(value)}" required></label>'
    )


def button(label: str, name: str = "", value: str = "", kind: str = "") -> str:
    """A button that sends its form."""
    named = f' name="{escape(name)}" value="{escape(value)}"' if name else ""
    return f'<button class="{escape(kind)}"{named}>{escape(label)}</button>'


def login(token: str, onwards: str, wrong: str | None = None) -> str:
    """The page to log in."""
    return page(
        "Log in",
        *([paragraph(wrong, "wrong")] if wrong else []),
        form(
            "/login",
            token,
            field("Name", "name", "text", "username"),
            field("Password", "password", "password", "current-password"),
            button("Log in"),
            hidden={"next": onwards},
        ),
        paragraph("No password yet? Ask whoever runs this authority for a link.", "note"),
    )


def link(token: str, secret: str, person: Person) -> str:
    """The page of a login link; only its button uses the link up."""
    return page(
        "Log in",
        paragraph(f"This link lets you in as {person.name}, once."),
        form(f"/login/link/{secret}", token, button(f"Log in as {person.name}")),
    )


def account(token: str, person: Person, consents: Sequence[Consent], note: str = "") -> str:
    """A person's own account."""
    return page(
        f"You are {person.name}",
        *([paragraph(note, "good")] if note else []),
        "<h2>Password</h2>",
        form(
            "/login/password",
            token,
            field("New password", "password", "password", "new-password"),
            button("Change it" if person.has_password else "Set it"),
        ),
        "<h2>What you agreed to</h2>",
        _consents(token, consents),
        form("/logout", token, button("Log out", kind="quiet")),
    )


def consent(token: str, review: Review, person: Person) -> str:
    """The question whether a client may act for a person."""
    login = review.login
    anchored = login.anchor != login.session_key
    where = (
        f"It runs at {login.anchor}."
        if anchored
        else f"It is a program with the key {login.session_key[:16]}…"
    )
    return page(
        f"Let {review.client} act for you?",
        paragraph(review.description),
        paragraph(where, "strong"),
        paragraph(f"You are {person.name}."),
        _requested(review),
        form(
            f"/login/{login.id}",
            token,
            button("Allow", "answer", "accept"),
            button("Refuse", "answer", "deny", "quiet"),
        ),
        _technical((f"{login.contract_id}, digest {login.digest}", *_lines(review.asked))),
    )


def code(flow: str) -> str:
    """The page that shows a flow id, for programs without a page of their own."""
    return page(
        "You are done here",
        paragraph("Go back to the program. If it asks for a code, this is the one:"),
        f"<p><code>{escape(flow)}</code></p>",
    )


def activation(token: str, typed: str = "", wrong: str | None = None) -> str:
    """The page to type the code of a device."""
    return page(
        "Activate a device",
        *([paragraph(wrong, "wrong")] if wrong else []),
        form(
            "/activate",
            token,
            field("The code that the device shows", "code", "text", "off", typed),
            button("Go on"),
            hidden={"step": "look"},
        ),
    )


def device(token: str, typed: str, waiting: DeviceActivation) -> str:
    """The question whether to activate a device."""
    return page(
        f"Activate {waiting.name}?",
        paragraph(f"It becomes a part of {waiting.deployment}.", "strong"),
        paragraph("Go on only if you see this code on a device that you know.", "note"),
        form(
            "/activate",
            token,
            button("Activate", "step", "confirm"),
            button("Refuse", "step", "refuse", "quiet"),
            hidden={"code": typed},
        ),
        _technical(
            (f"key {waiting.device_key}", f"{waiting.contract_id}, digest {waiting.digest}")
        ),
    )


def _requested(review: Review) -> str:
    if not review.texts:
        return paragraph("It asks for nothing beyond knowing that it is you.")
    items = "".join(
        f"<li><strong>{escape(each.name)}</strong> {escape(each.description)}"
        + (f' <em class="wrong">{escape(each.consequence)}</em>' if each.consequence else "")
        + (" <em>(you do not have this yourself)</em>" if each.key in review.missing else "")
        + "</li>"
        for each in review.texts
    )
    return f"<p>It asks to:</p><ul>{items}</ul>"


def _lines(access: Access) -> list[str]:
    return sorted(access.surfaces) + sorted(access.capabilities)


def _technical(lines: Iterable[str]) -> str:
    items = "".join(f"<li><code>{escape(line)}</code></li>" for line in lines)
    return f"<details><summary>Technical details</summary><ul>{items}</ul></details>"


def _consents(token: str, consents: Sequence[Consent]) -> str:
    latest: dict[tuple[str, str], Consent] = {}
    for each in consents:  # the latest come first
        latest.setdefault((each.contract_id, each.anchor), each)
    standing = [each for each in latest.values() if each.answer.allows]
    if not standing:
        return paragraph("Nothing yet.")
    return "".join(
        form(
            "/login/withdraw",
            token,
            paragraph(f"{each.contract_id} at {each.anchor}"),
            button("Withdraw", kind="quiet"),
            hidden={"contract": each.contract_id, "anchor": each.anchor},
        )
        for each in standing
    )
