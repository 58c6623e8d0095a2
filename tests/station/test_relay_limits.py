"""Every limit of a connector can be set, and what is set reaches it."""

from dataclasses import fields
from pathlib import Path

import pytest

from accord.relay.connector import ControlSettings, DeliveryLimits
from accord.station import load
from accord.station.errors import SettingsError
from accord.station.pipeline import retention_of
from accord.station.relay import control_settings, delivery_limits
from accord.station.relay_limits import ConnectorSettings

# What follows from other settings.
DERIVED = {"finish_seconds", "is_exported", "journal_seconds", "outgoing"}


def written(home: Path, *lines: str) -> Path:
    home.mkdir(exist_ok=True)
    (home / "accord.toml").write_text("[relay]\n" + "\n".join(lines))
    return home


@pytest.mark.parametrize("kind", [ControlSettings, DeliveryLimits])
def test_every_limit_is_a_setting_with_the_same_default(kind: type) -> None:
    settings = ConnectorSettings()
    for each in fields(kind):
        if each.name not in DERIVED:
            assert getattr(settings, each.name) == each.default, each.name
            assert ConnectorSettings.model_fields[each.name].description


def test_what_is_set_reaches_the_connector(tmp_path: Path) -> None:
    settings = load(
        written(tmp_path, "window = 7", "link_tries = 2", "journal_days = 10", "buffer_rows = 9")
    )
    limits, control = delivery_limits(settings, is_exported=True), control_settings(settings)
    assert (limits.window, limits.buffer_rows, control.link_tries) == (7, 9, 2)
    assert (limits.journal_seconds, limits.is_exported) == (10 * 86_400.0, True)
    assert control.managed_keys == ""


def test_without_settings_nothing_differs_from_the_defaults(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert control_settings(settings) == ControlSettings()
    assert delivery_limits(settings) == DeliveryLimits()


def test_the_relays_journal_has_a_retention_of_its_own(tmp_path: Path) -> None:
    assert retention_of(load(tmp_path), "relay").journal_days == 90
    assert retention_of(load(tmp_path), "community").journal_days == 0
    for_ever = load(written(tmp_path, "journal_days = 0"))
    assert retention_of(for_ever, "relay").journal_days == 0
    (tmp_path / "accord.toml").write_text("[pipeline]\nretain_days = 30\n")
    assert retention_of(load(tmp_path), "relay").journal_days == 30


@pytest.mark.parametrize(
    "line",
    [
        "window = 0",
        "window = true",
        "lease_seconds = -1",
        "unlinked_sample = 1.5",
        "journal_days = -1",
        "renew_seconds = 5.0",
        "outbox_pause_seconds = 400",
        "request_seconds = 60",
        "windows = 3",
    ],
)
def test_limits_that_make_no_sense_are_refused(tmp_path: Path, line: str) -> None:
    with pytest.raises(SettingsError):
        load(written(tmp_path, line))


def test_limits_that_do_not_fit_together_name_each_other(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        load(written(tmp_path, "renew_seconds = 5.0"))
    assert "at most half of lease_seconds" in str(caught.value)
