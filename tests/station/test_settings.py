import os
from pathlib import Path

import pytest

from accord.station import Settings, SettingsError, doctor, load
from accord.station.checks import CheckStatus, MachineCheck
from accord.station.doctor import settings_file_checks
from accord.station.settings import secrets_in, sections, variable


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("ACCORD_"):
            monkeypatch.delenv(name)


def written(home: Path, text: str | bytes) -> Path:
    home.mkdir(exist_ok=True)
    data = text if isinstance(text, bytes) else text.encode()
    (home / "accord.toml").write_bytes(data)
    return home


def refusal(home: Path, config: Path | None = None) -> str:
    with pytest.raises(SettingsError) as caught:
        load(home, config)
    return str(caught.value)


def test_without_a_file_every_setting_has_its_default_and_nothing_is_made(tmp_path: Path) -> None:
    settings = load(tmp_path / "home")
    assert settings.home == tmp_path / "home"
    assert (settings.station.host, settings.station.port) == ("127.0.0.1", 7070)
    assert settings.store.url.get_secret_value() == ""
    assert list(tmp_path.iterdir()) == []


def test_the_environment_stands_above_the_file_and_the_file_above_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = written(tmp_path, '[station]\nport = 7171\nname = "from file"\n[log]\nlevel = "debug"\n')
    monkeypatch.setenv("ACCORD_STATION__PORT", "7272")
    settings = load(home)
    assert (settings.station.port, settings.station.name) == (7272, "from file")
    assert (settings.log.level, settings.log.format) == ("debug", "auto")


def test_the_home_is_the_argument_else_the_variable_else_a_folder_of_the_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert load().home == tmp_path / ".accord"
    monkeypatch.setenv("ACCORD_HOME", str(tmp_path / "variable"))
    assert load().home == tmp_path / "variable"
    assert load(tmp_path / "argument").home == tmp_path / "argument"


def test_two_loads_of_the_same_settings_are_equal_and_frozen(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings == load(tmp_path)
    with pytest.raises(ValueError, match="frozen"):
        settings.station = settings.station
    with pytest.raises(ValueError, match="frozen"):
        settings.station.port = 1


def test_a_moved_home_is_the_same_station(tmp_path: Path) -> None:
    written(tmp_path / "here", "[station]\nport = 7171\n")
    (tmp_path / "here").rename(tmp_path / "there")
    assert load(tmp_path / "there").station.port == 7171


def test_broken_toml_is_told_with_file_line_and_column(tmp_path: Path) -> None:
    sentence = refusal(written(tmp_path, "[station]\nport = = 3\n"))
    assert sentence.startswith(f"{tmp_path}/accord.toml, line 2, column 8: the file is not TOML")
    assert "\n" not in sentence
    assert "; write settings as" in sentence


def test_a_file_that_is_not_utf8_is_told_with_the_byte(tmp_path: Path) -> None:
    assert "byte 2 is not UTF-8; save" in refusal(written(tmp_path, b"# \xff\n"))


def test_a_file_that_nests_without_end_is_told(tmp_path: Path) -> None:
    assert "nests too deeply; write" in refusal(written(tmp_path, "a = " + "[" * 100_000))


def test_an_unknown_setting_is_told_with_what_was_probably_meant(tmp_path: Path) -> None:
    sentence = refusal(written(tmp_path, "[station]\nprot = 7070\n"))
    assert sentence == (
        f"{tmp_path}/accord.toml: [station] prot: there is no such setting; did you mean port?"
    )


def test_an_unknown_section_is_told_with_what_was_probably_meant(tmp_path: Path) -> None:
    sentence = refusal(written(tmp_path, "[statoin]\nport = 7070\n"))
    assert "[statoin]: there is no such section; did you mean station?" in sentence


def test_the_home_cannot_be_set_in_the_file_that_lies_in_it(tmp_path: Path) -> None:
    assert "home: there is no such section" in refusal(written(tmp_path, 'home = "/elsewhere"\n'))


@pytest.mark.parametrize("name", ["_env_prefix", "_case_sensitive", "self", "settings_cls"])
def test_names_of_the_settings_machinery_mean_nothing_in_the_file(
    tmp_path: Path, name: str
) -> None:
    assert "there is no such section" in refusal(written(tmp_path, f'{name} = "x"\n'))


def test_a_section_that_is_a_value_is_refused(tmp_path: Path) -> None:
    assert "station: a section is wanted" in refusal(written(tmp_path, "station = 3\n"))


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('port = "seven"', "should be a valid integer"),
        ("port = 70000", "should be less than or equal to 65535"),
        ("port = -1", "should be greater than or equal to 0"),
        ("port = []", "should be a valid integer"),
        ("port = true", "should not be true or false"),
        ("drain_seconds = true", "should not be true or false"),
        ('name = ""', "should have at least 1 character"),
        ("drain_seconds = nan", "should be"),
        ("drain_seconds = -1", "should be greater than or equal to 0"),
    ],
)
def test_a_wrong_value_is_told_with_its_place_and_how_to_mend_it(
    tmp_path: Path, line: str, complaint: str
) -> None:
    key = line.split()[0]
    sentence = refusal(written(tmp_path, f"[station]\n{line}\n"))
    assert sentence.startswith(f"{tmp_path}/accord.toml: [station] {key}: the value ")
    assert complaint in sentence
    assert "; correct it, for example to the default " in sentence


def test_a_wrong_value_from_the_environment_is_told_with_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCORD_STATION__PORT", "many")
    assert refusal(tmp_path).startswith("environment variable ACCORD_STATION__PORT: the value ")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("ACCORD_STATION__PROT", "did you mean ACCORD_STATION__PORT?"),
        ("ACCORD_STATION_PORT", "did you mean ACCORD_STATION__PORT?"),
        ("accord_log__levl", "did you mean ACCORD_LOG__LEVEL?"),
        ("ACCORD_STATION", "did you mean"),
        ("ACCORD_QQQQQQQQQQ", "unset it, or use one of"),
    ],
)
def test_an_unknown_variable_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, hint: str
) -> None:
    monkeypatch.setenv(name, "1")
    sentence = refusal(tmp_path)
    assert f"environment variable {name.upper()}: there is no such setting; " in sentence
    assert hint in sentence


def test_variables_that_are_not_settings_are_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCORD_VECTORS", str(tmp_path))
    assert load(tmp_path).station.port == 7070


def test_every_finding_is_told_in_a_line_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCORD_LOG__LEVL", "debug")
    home = written(tmp_path, '[statoin]\n[station]\nprot = 1\nport = "x"\n[log]\nlevel = "loud"\n')
    lines = refusal(home).splitlines()
    for part in ("LEVL", "[statoin]", "[station] prot", "[station] port", "[log] level"):
        assert sum(part in line for line in lines) == 1
    assert len(lines) == 5


def test_a_file_that_was_named_must_exist(tmp_path: Path) -> None:
    sentence = refusal(tmp_path, tmp_path / "other.toml")
    assert (
        sentence == f"{tmp_path}/other.toml: there is no such settings file; name one that exists"
    )


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "accord.toml").mkdir()
    assert "the settings file cannot be read: Is a directory" in refusal(tmp_path)


@pytest.mark.parametrize("url", ["mysql://u:hunter2@h/d", "hunter2"])
def test_a_wrong_store_url_is_refused_without_being_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setenv("ACCORD_STORE__URL", url)
    with pytest.raises(SettingsError) as caught:
        load(tmp_path)
    assert "should be empty or start with postgresql://" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_a_secret_may_lie_in_a_file_that_the_environment_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "accord.toml").write_text('[store]\nurl = "postgresql://file"\n')
    (tmp_path / "url").write_text("postgresql://user:word@host/name\n")
    monkeypatch.setenv("ACCORD_STORE__URL_FILE", str(tmp_path / "url"))
    url = load(tmp_path).store.url
    assert url.get_secret_value() == "postgresql://user:word@host/name"


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "cannot be read"),
        (b"", "is empty"),
        (b"\xff\xfe", "is no text"),
        (b"mysql://u:hidden@h/n", "start with postgresql://"),
    ],
)
def test_a_secret_file_that_is_no_use_is_told_by_its_variable_and_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, what: str
) -> None:
    if content is not None:
        (tmp_path / "url").write_bytes(content)
    monkeypatch.setenv("ACCORD_STORE__URL_FILE", str(tmp_path / "url"))
    with pytest.raises(SettingsError, match=what) as caught:
        load(tmp_path)
    assert "ACCORD_STORE__URL_FILE" in str(caught.value)
    assert "hidden" not in str(caught.value)


def test_a_secret_that_is_given_twice_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "url").write_text("postgresql://host/name")
    monkeypatch.setenv("ACCORD_STORE__URL_FILE", str(tmp_path / "url"))
    monkeypatch.setenv("ACCORD_STORE__URL", "postgresql://host/other")
    with pytest.raises(SettingsError, match="given twice"):
        load(tmp_path)


def test_no_form_of_the_settings_shows_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCORD_STORE__URL", "postgresql://u:hunter2@h/d")
    settings = load(tmp_path)
    assert settings.store.url.get_secret_value().endswith("hunter2@h/d")
    for form in (repr(settings), str(settings), settings.model_dump_json(), f"{settings!r}"):
        assert "hunter2" not in form


def test_the_reference_names_every_setting_with_its_variable_and_default() -> None:
    reference = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"
    text = reference.read_text()
    for section, model in sections().items():
        assert f"## [{section}]" in text
        for key, field in model.model_fields.items():
            row = next(line for line in text.splitlines() if f"`{variable(section, key)}`" in line)
            assert f"`{key}`" in row
            assert field.description
            assert field.description in row
    assert isinstance(Settings.model_fields["home"].default, Path)


def exposed(home: Path, text: str, mode: int) -> list[MachineCheck]:
    home.mkdir(mode=0o755, exist_ok=True)
    file = home / "accord.toml"
    file.write_text(text)
    file.chmod(mode)
    return list(settings_file_checks(load(home)))


SECRETS = '[metrics]\ntoken = "a-secret-that-is-long-enough"\n[station]\nname = "attic"\n'


def test_secrets_in_a_file_that_others_read_are_told_and_never_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_readers", lambda _file, mode: "others" if mode & 0o044 else "")
    (check,) = exposed(tmp_path / "home", SECRETS, 0o644)
    assert check.status is CheckStatus.WARN
    assert "[metrics] token" in check.seen
    assert "chmod 600" in check.advice
    assert "a-secret" not in check.seen + check.advice
    for text, mode in ((SECRETS, 0o600), ('[station]\nname = "attic"\n', 0o644)):
        (check,) = exposed(tmp_path / "home", text, mode)
        assert check.status is CheckStatus.OK
    assert secrets_in(tmp_path / "nowhere.toml") == []
    assert list(settings_file_checks(load(tmp_path / "elsewhere"))) == []


def test_a_file_is_read_by_whoever_the_folders_above_let_through(tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o700)
    file = folder / "accord.toml"
    file.write_text("")
    assert doctor._readers(file, 0o644) == ""
    parts = [each.stat().st_mode for each in tmp_path.parents]
    folder.chmod(0o755)
    lets_through = all(each & 0o001 for each in (*parts, tmp_path.stat().st_mode))
    expected = "everybody on this machine" if lets_through else ""
    assert doctor._readers(file, 0o644) == expected
    assert doctor._readers(file, 0o600) == ""
