"""The guides of the platforms with webhooks say what the code does."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from accord.kernel.schema import compile_schema
from accord.kernel.section import Section
from accord.relay.platforms import sms, webhook, wecom
from accord.relay.rules import Descriptor

GUIDES = Path(__file__).parents[3] / "docs" / "guides" / "platforms"
EVERY = [
    ("sms", sms.SmsSettings, sms.DESCRIPTOR),
    ("wecom", wecom.WecomSettings, wecom.DESCRIPTOR),
    ("webhook", webhook.WebhookSettings, webhook.DESCRIPTOR),
]


def blocks(name: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (GUIDES / f"{name}.md").read_text(), re.DOTALL)


@pytest.mark.parametrize(("name", "settings", "descriptor"), EVERY)
def test_a_guide_shows_settings_that_work_and_names_every_one(
    name: str, settings: type[Section], descriptor: Descriptor
) -> None:
    text = (GUIDES / f"{name}.md").read_text()
    (example,) = blocks(name, "toml")
    (table,) = tomllib.loads(example)["relay"][name]
    settings.model_validate(table)
    for field in settings.model_fields:
        assert f"`{field}`" in text, field
    assert "[platforms]" in text
    assert str(descriptor.max_message_length) in text
    assert f"/relay/platforms/{name}/" in text


def test_the_messages_in_the_guide_keep_the_schema() -> None:
    message, actions = blocks("webhook", "json")
    assert compile_schema(webhook.SCHEMA).is_valid(json.loads(message))
    assert [json.loads(line)["type"] for line in actions.splitlines()] == ["send", "edit", "typing"]
    text = (GUIDES / "webhook.md").read_text()
    for member in webhook.SCHEMA["properties"]:
        assert f"`{member}`" in text, member
