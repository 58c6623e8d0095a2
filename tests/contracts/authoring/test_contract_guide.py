"""The guide to contracts does what it says."""

import re
import subprocess
import sys
from pathlib import Path

from accord.contracts import digest, render_sdk
from accord.kernel.canonical import decode

GUIDE = (Path(__file__).parents[3] / "docs" / "guides" / "contracts.md").read_text()
AUTHORED, USED, _RESOURCES = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def test_the_contract_of_the_guide_has_the_digest_that_the_guide_shows() -> None:
    emitted = subprocess.run(
        [sys.executable, "-c", AUTHORED], capture_output=True, check=True, timeout=60
    )
    shown = re.findall(r"its digest is (\S{4,})….\n", GUIDE)
    assert shown
    assert all(str(digest(decode(emitted.stdout))).startswith(each) for each in shown)


def test_the_client_of_the_guide_type_checks_against_the_generated_package(tmp_path: Path) -> None:
    emitted = subprocess.run(
        [sys.executable, "-c", AUTHORED], capture_output=True, check=True, timeout=60
    )
    for path, text in render_sdk(decode(emitted.stdout)).items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "use.py").write_text(USED)
    mypy = [str(Path(sys.executable).parent / "mypy"), "--strict", "--config-file="]
    answer = subprocess.run(
        [*mypy, "--cache-dir=cache", "use.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert answer.returncode == 0, answer.stdout
    wrong = USED.replace('["name"]', '["nome"]')
    # Another file: within one second mypy would take one of the same size for unchanged.
    (tmp_path / "misuse.py").write_text(wrong)
    answer = subprocess.run(
        [*mypy, "--cache-dir=cache", "misuse.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert 'has no key "nome"' in answer.stdout
