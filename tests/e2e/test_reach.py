"""Two nodes in network namespaces without a route to each other talk through an anchor."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

GROUND = Path(__file__).with_name("nat_ground.py")
OUTSIDE = ("unshare", "--map-root-user", "--net")


def has_namespaces() -> bool:
    if not all(shutil.which(each) for each in ("unshare", "nsenter", "ip")):
        return False
    tried = subprocess.run(
        [
            *OUTSIDE,
            "sh",
            "-c",
            "ip link add probe0 type veth peer name probe1 && unshare --net true",
        ],
        capture_output=True,
        check=False,
    )
    return tried.returncode == 0


def test_two_homes_without_a_route_to_each_other_talk_through_an_anchor(tmp_path: Path) -> None:
    if not has_namespaces():
        pytest.skip("network namespaces cannot be made on this machine")
    done = subprocess.run(
        [*OUTSIDE, sys.executable, str(GROUND), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert not found["has_route"]
    # A call of half a megabyte each way and a stream of one, with TLS from end to end.
    assert found["called"] == {
        "caller": found["caller"],
        "frames": 201,
        "by": found["address"],
    }
    assert found["direct"] == "direct"
