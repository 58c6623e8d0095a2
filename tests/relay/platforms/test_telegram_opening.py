"""What it takes to open a Telegram bot."""

from pathlib import Path

import pytest
from pydantic import ValidationError
from tests.relay.platforms.telegram_service import TOKEN, settings

from accord.kernel.clock import SystemClock
from accord.relay.errors import RelayError
from accord.relay.platforms import telegram
from accord.relay.rules import Descriptor


async def test_a_bot_is_known_by_its_token_without_asking_telegram() -> None:
    chosen = settings("http://127.0.0.1:9")
    async with telegram.open_telegram(chosen, SystemClock()) as platform:
        assert (platform.name, platform.bot_id) == ("telegram", "700")
        assert list(platform.routes) == []
        assert not platform.idempotent
        assert platform.descriptor() == Descriptor.from_dict(telegram.DESCRIPTOR.to_dict())


async def test_a_token_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(TOKEN + "\n")
    chosen = settings(token="", token_file=str(tmp_path / "token"))
    async with telegram.open_telegram(chosen, SystemClock()) as platform:
        assert platform.bot_id == "700"


@pytest.mark.parametrize("token", ["x", "700", "700:", ":x", "700:a b", "700:a/../b", "\u0667:abc"])
async def test_what_is_no_token_is_refused_and_not_shown(token: str) -> None:
    with pytest.raises(RelayError) as refusal:
        async with telegram.open_telegram(settings(token=token), SystemClock()):
            pass
    assert "relay.telegram.token" in str(refusal.value)
    assert "a b" not in str(refusal.value)


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"token": ""}, "a secret is missing"),
        ({"token_file": "there"}, "given twice"),
        ({"token": "", "token_file": "/nowhere/token"}, "cannot be read"),
        ({"mode": "webhook"}, "an address from outside"),
        ({"api_url": "http://x:99999999"}, "no URL"),
    ],
)
async def test_settings_that_cannot_work_are_refused_with_a_remedy(
    given: dict[str, str], what: str
) -> None:
    with pytest.raises(RelayError, match=what):
        async with telegram.open_telegram(settings(**given), SystemClock()):
            pass


@pytest.mark.parametrize(
    "given",
    [
        {"mode": "carrier pigeon"},
        {"api_url": "ftp://x"},
        {"api_url": "https://x/?y"},
        {"poll_seconds": 0},
        {"poll_seconds": True},
        {"tokens": "x"},
    ],
)
def test_a_setting_of_another_form_is_refused(given: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        telegram.TelegramSettings.model_validate(given)


def test_settings_do_not_show_the_token() -> None:
    assert TOKEN not in repr(settings())
