"""The dbt project of the examples, on published tables; dbt has an environment of its own."""

import os
import subprocess
import sys
from pathlib import Path

import duckdb
import pytest
from tests.pipeline.reader.test_reader import release

from accord.pipeline.folder import Layout
from accord.pipeline.runs.listing import write_database

pytestmark = pytest.mark.slow

PROJECT = Path(__file__).parents[3] / "examples" / "lakehouse"


@pytest.fixture(scope="module")
def dbt(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """dbt as the example's requirements name it, from the package registry."""
    place = tmp_path_factory.mktemp("dbt")
    python = place / "bin" / "python"
    uv = [sys.executable, "-m", "uv"]
    install = [*uv, "pip", "install", "--quiet", "--system-certs", f"--python={python}"]
    try:
        subprocess.run([*uv, "venv", "--quiet", str(place), "--clear"], check=True, timeout=60)
        subprocess.run(
            [*install, f"--requirements={PROJECT / 'requirements.txt'}"],
            check=True,
            timeout=240,
            capture_output=True,
        )
    except (OSError, subprocess.SubprocessError):
        pytest.skip("dbt cannot be had from a package registry")
    return place / "bin" / "dbt"


def test_the_dbt_project_builds_on_the_published_tables(dbt: Path, tmp_path: Path) -> None:
    layout = Layout(tmp_path / "history")
    counts = {"stream": "bus.calls", "accepted": 3, "quarantined": 1}
    release(
        layout,
        quality=[{**counts, "day": None}],
        members=[
            {"community_id": "c", "node_id": f"n{number}", "level": "member"} for number in range(4)
        ],
    )
    write_database(layout, tmp_path / "lake.duckdb")
    made = tmp_path / "made.duckdb"
    variables = {
        "ACCORD_LAKE": str(tmp_path / "lake.duckdb"),
        "LAKEHOUSE": str(made),
        "DBT_TARGET_PATH": str(tmp_path / "target"),
        "DBT_LOG_PATH": str(tmp_path / "logs"),
    }
    built = subprocess.run(
        [dbt, "build", f"--project-dir={PROJECT}", f"--profiles-dir={PROJECT}"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert built.returncode == 0, built.stdout
    with duckdb.connect(str(made)) as connection:
        assert connection.execute("FROM members_by_level").fetchall() == [("c", "member", 4)]
        connection.execute(f"ATTACH '{tmp_path / 'lake.duckdb'}' AS accord (READ_ONLY)")
        share = connection.execute("SELECT records, share FROM refused_by_day").fetchall()
        assert share == [(4, 0.25)]
