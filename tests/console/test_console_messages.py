"""The languages of the console: nothing is said outside the catalogues, and nothing is left out."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import jinja2
import pytest
from docs.making.messages import LOCALE, messages, rendered, untranslated, updated
from jinja2 import nodes
from tests.console.consoles import opened, with_parts

import accord.console
from accord.console.messages import (
    LANGUAGES,
    WORDS,
    choose_language,
    language,
    set_language,
    tr,
    trn,
    word,
)
from accord.console.pages import PAGES
from accord.telemetry.figures import FIGURES

CONSOLE = Path(accord.console.__file__).parent
OTHERS = [code for code in LANGUAGES if code != "en"]
PLACEHOLDER = re.compile(r"%\((\w+)\)s|\{(\w*)[^{}]*\}")
TAG = re.compile(r"<[^>]*>")
LETTERS = re.compile(r"[^\W\d_]{2,}")
# What people read in attributes.
READ = re.compile(r'\b(?:aria-label|placeholder|title|alt)="([^"{]*)"')
SENTENCE = re.compile(r"[A-Za-z]{2,}[,.:;]? [A-Za-z(“]{2,}")
# Commands, media types, headers and queries are not translated.
NO_SENTENCE = re.compile(
    r"accord |SELECT |text/|attachment;|private, |default-src|noopener|the value |<|Basic "
)
TRANSLATED = frozenset({"tr", "trn", "mark"})
LOGGED = frozenset({"_log"})


@pytest.mark.parametrize("code", OTHERS)
def test_a_catalogue_has_every_message_translated_and_no_other(code: str) -> None:
    catalogue = updated(code)
    assert list(untranslated(catalogue)) == []
    text, binary = rendered(catalogue)
    differs = "run `make messages`, and translate what is new"
    assert (LOCALE / f"{code}.po").read_bytes() == text, differs
    assert (LOCALE / f"{code}.mo").read_bytes() == binary, differs


@pytest.mark.parametrize("code", OTHERS)
def test_translations_fill_in_what_their_messages_do(code: str) -> None:
    for each in updated(code):
        if not each.id:
            continue
        said = [str(one) for one in (each.id if isinstance(each.id, tuple) else (each.id,))]
        texts = each.string if isinstance(each.string, tuple) else (each.string,)
        told = [str(one) for one in texts]
        wanted = {"".join(found) for found in PLACEHOLDER.findall(said[-1])}
        for one in told:
            assert {"".join(found) for found in PLACEHOLDER.findall(one)} == wanted, said
            assert sorted(TAG.findall(one)) == sorted(TAG.findall(said[-1])), said


def test_templates_have_no_words_outside_the_catalogues() -> None:
    found = [
        f"{file.name}: {words}"
        for file in sorted((CONSOLE / "templates").glob("*.html"))
        for words in outside(file)
    ]
    assert found == []


def test_a_word_outside_the_catalogues_is_found(tmp_path: Path) -> None:
    template = tmp_path / "page.html"
    template.write_text(
        '<p title="A title">Hello {{ name }}{{ _("fine") }}{{ ui.empty("Nothing") }}</p>'
    )
    assert sorted(outside(template)) == ["A title", "Hello", "Nothing"]
    module = tmp_path / "module.py"
    module.write_text('"""A docstring."""\nraise Error("it is missing", tr("fill it in"))\n')
    assert list(sentences(module)) == ["it is missing"]


def test_code_has_no_sentences_outside_the_catalogues() -> None:
    found = [
        f"{file.relative_to(CONSOLE)}: {sentence}"
        for file in sorted(CONSOLE.rglob("*.py"))
        if "migrations" not in file.parts
        for sentence in sentences(file)
    ]
    assert found == []


def test_figures_of_planes_are_among_the_words() -> None:
    shown = {each.plane for each in FIGURES} | {each.name for each in FIGURES}
    assert shown <= set(WORDS)
    titles = {each.title for each in PAGES} | {each.group for each in PAGES if each.group}
    assert titles <= {each.id for each in messages()}


def test_the_language_is_what_was_chosen_set_or_accepted() -> None:
    assert choose_language("auto", "", "") == "en"
    assert choose_language("auto", "", "de-AT,en;q=0.7") == "de"
    assert choose_language("auto", "", "fr, de;q=0.2, en;q=0.8") == "en"
    assert choose_language("auto", "", "de;q=0, en;q=0.1") == "en"
    assert choose_language("auto", "", "de;q=x, ,;;") == "en"
    assert choose_language("de", "", "en") == "de"
    assert choose_language("de", "en", "de") == "en"
    assert choose_language("auto", "nonsense", "de") == "de"


def test_messages_are_filled_in_in_each_language() -> None:
    try:
        assert tr("{label} is missing", label="x") == "x is missing"
        assert trn(
            "{title} is in {corpus}, in {count} part.", "{title}, {count}", 1, title="a", corpus="b"
        )
        set_language("de")
        assert tr("{label} is missing", label=tr("The title")) == "Der Titel fehlt"
        assert word("ready") == "bereit"
        assert word("what nobody translated %s {") == "what nobody translated %s {"
        set_language("tlh")
        assert language() == "en"
    finally:
        set_language("en")


async def test_pages_are_in_the_language_of_the_browser_the_station_or_the_switch(
    tmp_path: Path,
) -> None:
    german = {"accept-language": "de-DE,de;q=0.9"}
    async with opened(tmp_path / "home") as found:
        async with found.browser() as stranger:
            told = (await stranger.get("login", headers=german)).text
            assert "Zum Anmelden brauchen Sie" in told
            assert '<html lang="de"' in told
            missing = await stranger.http.get("/console/nowhere", headers=german)
            assert "Diese Seite gibt es nicht" in missing.text
        async with found.inside() as browser:
            assert "Needs attention" in (await browser.get("")).text
            assert "Braucht Aufmerksamkeit" in (await browser.get("", headers=german)).text
            refused = await browser.send("market/post", {"title": ""}, headers=german)
            assert "Der Titel fehlt." in refused.text
            shown = await browser.send("look", {"language": "de", "back": "/console/market"})
            assert "Etwas auf den Markt stellen" in shown.text
            for page in PAGES:
                assert "<h1>" in (await browser.get(page.slug)).text
            # What is no language forgets the choice, and no other site is gone to.
            back = await browser.send(
                "look", {"language": "", "back": "//evil.example"}, follow_redirects=False
            )
            assert back.headers["location"] == "/console/"
            assert "Needs attention" in (await browser.get("")).text
        set_by_station = with_parts(found, language="de")
        async with set_by_station.browser() as other:
            assert "Zum Anmelden brauchen Sie" in (await other.get("login")).text


async def test_a_browser_keeps_the_colours_that_were_chosen(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        assert "data-look" not in (await browser.get("")).text
        dark = (await browser.send("look", {"look": "dark"})).text
        assert 'data-look="dark"' in dark
        assert '<meta name="color-scheme" content="dark">' in dark
        assert "data-look" not in (await browser.send("look", {"look": ""})).text


def outside(file: Path) -> Iterator[str]:
    """The words of a template that are in no message."""
    environment = jinja2.Environment(extensions=["jinja2.ext.i18n"], autoescape=True)
    source = re.sub(r"\{#.*?#\}", "", file.read_text("utf-8"), flags=re.DOTALL)
    # A tag may have expressions within; they are looked at by themselves.
    for found in READ.findall(source):
        if LETTERS.search(found):
            yield found
    plain = re.sub(r"\{% trans.*?\{% endtrans %\}", "", source, flags=re.DOTALL)
    plain = re.sub(r"\{\{.*?\}\}|\{%.*?%\}", "", plain, flags=re.DOTALL)
    plain = re.sub(r"<(code|style|script)\b.*?</\1>", "", plain, flags=re.DOTALL)
    for found in TAG.sub("\n", plain).splitlines():
        # Attributes that a macro gives to a tag are no words.
        if LETTERS.search(re.sub(r'&\w+;|[\w-]+="[^"]*"', "", found)):
            yield found.strip()
    for call in environment.parse(source).find_all(nodes.Call):
        named = call.node
        if not isinstance(named, nodes.Getattr) or named.attr not in MACROS:
            continue
        given: list[nodes.Expr] = call.args[MACROS[named.attr] :][:1]
        given += [each.value for each in call.kwargs if each.key in ("label", "hint")]
        for each in given:
            if isinstance(each, nodes.Const) and LETTERS.search(str(each.value)):
                yield str(each.value)


# Where the text stands among the arguments of macros.
MACROS = {"field": 1, "area": 1, "choice": 1, "submit": 0, "empty": 0, "away": 0}


def sentences(file: Path) -> Iterator[str]:
    """The sentences of a module that nothing translates."""
    tree = ast.parse(file.read_text("utf-8"))
    said: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            said.add(id(node.value))  # a docstring
        elif isinstance(node, ast.Call) and _is_free(node.func):
            said |= {id(each) for given in node.args for each in ast.walk(given)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
            continue
        is_said = SENTENCE.search(node.value) and not NO_SENTENCE.match(node.value)
        if is_said and id(node) not in said:
            yield node.value


def _is_free(called: ast.expr) -> bool:
    """Whether what a call is given is translated, logged, or a pattern."""
    match called:
        case ast.Name(id=name):
            return name in TRANSLATED
        case ast.Attribute(value=ast.Name(id=owner), attr=name):
            return owner in LOGGED or (owner, name) == ("re", "compile")
    return False
