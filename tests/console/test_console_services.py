"""Services and jobs: what is deployed and there, and the work that is done again or put aside."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from tests.console.consoles import EVIL, Browser, opened
from tests.console.planes import Town, post, town

from accord.console import PlaneHealth
from accord.console.parts import ShellLock
from accord.contracts.session_proof import session_key
from accord.fabric import Service
from accord.fabric.jobs import GiveUpError, JobContext
from accord.testing import VirtualClock, run_virtual

pytestmark = pytest.mark.slow


async def until(browser: Browser, path: str, pattern: str) -> str:
    """The page, once something stands on it."""
    async with asyncio.timeout(30):
        while True:
            shown = (await browser.get(path)).text
            if re.search(pattern, shown):
                return shown
            await asyncio.sleep(0.05)


async def test_without_an_authority_the_page_says_so(tmp_path: Path) -> None:
    async with opened(tmp_path / "home") as found, found.inside() as browser:
        assert "The authority is not part of this station." in (await browser.get("services")).text
        found.planes.append(PlaneHealth("authority", "starting", is_well=True))
        assert "The authority is not up now." in (await browser.get("services")).text
        assert "The authority is not up" in (await browser.get("services/jobs")).text
        given = {"job": "x", "deployment": "x", "disabled": "yes"}
        for act in ("allow", "retry", "dismiss", "reconcile", "switch"):
            assert (await browser.send(f"services/{act}", given)).status_code == 503
        taken = {"deployment": "x", "capability": "a::b"}
        assert (await browser.send("services/narrow", taken)).status_code == 503


WAY = ("Submitted", "Begun", "Failed for good", "Asked for again by an operator")


async def test_a_service_is_shown_as_it_lives_and_its_jobs_are_looked_after(
    tmp_path: Path,
) -> None:
    async with town(tmp_path / "home") as here, here.found.inside() as browser:
        assert "Nothing is deployed yet." in (await browser.get("services")).text
        assert "may not call yet" in (await browser.get("services/jobs")).text

        key = await here.deploy(post())
        service = Service(post(), key=key, authority=here.url)
        heard = asyncio.Event()

        @service.job("carry")
        async def carry(context: JobContext, _payload: Any) -> Any:
            heard.set()
            raise GiveUpError(f"no such street {EVIL}")

        assert "nothing now" in (await browser.get("services")).text
        async with service.connect() as session:
            shown = await until(browser, "services", r"post@v1 <span class=\"state well\">live")
            assert session_key(key) in shown
            job = await session.jobs("carry").submit({})
            await heard.wait()
            allowed = (await browser.send("services/allow")).text
            assert "may call now" in allowed
            assert "accord jobs list" in allowed
            dead = await until(browser, "services/jobs?state=dead&service=post", job)
            assert "no such street" in dead
            assert EVIL not in dead
            assert "There are none." in (await browser.get("services/jobs?service=nobody")).text
            heard.clear()
            again = (await browser.send("services/retry", {"job": job})).text
            assert f"{job} is " in again
            await heard.wait()
            await until(browser, "services/jobs?state=dead", job)
            told = (await browser.get(f"services/job?id={job}")).text
            way = [told.find(f"<strong>{each}</strong>") for each in WAY]
            assert way == sorted(way)
            assert -1 not in way
            assert told.count("<strong>Failed for good</strong>") == 2
            assert "no such street" in told
            assert EVIL not in told
            assert (await browser.get("services/job?id=nobody")).status_code == 404
            assert (await browser.get("services/job?id=*")).status_code == 400
            dismissed = (await browser.send("services/dismiss", {"job": job})).text
            assert f"{job} is dismissed." in dismissed
            for named in (job, "nobody"):
                refused = await browser.send("services/dismiss", {"job": named})
                assert 'role="alert"' in refused.text

        for wrong in ("", EVIL, "0" * 200, "\0"):
            for act in ("retry", "dismiss"):
                assert (
                    'role="alert"' in (await browser.send(f"services/{act}", {"job": wrong})).text
                )
        assert (await browser.get("services/jobs?state=love")).status_code == 400
        await deployments_are_switched(here, browser)
        await what_was_accepted_is_taken_back(here, browser)


async def deployments_are_switched(here: Town, browser: Browser) -> None:
    off = await browser.send("services/switch", {"deployment": "post", "disabled": "yes"})
    assert "post is disabled." in off.text
    assert (await here.running.authority.deployments.get("post")).disabled
    on = await browser.send("services/switch", {"deployment": "post", "disabled": "no"})
    assert "post is enabled." in on.text
    real = await browser.send("services/reconcile", {"deployment": "post"})
    assert "post is current." in real.text
    for given in (
        {"deployment": "post", "disabled": "perhaps"},
        {"deployment": "nobody", "disabled": "yes"},
        {"deployment": EVIL, "disabled": "yes"},
        {"disabled": "yes"},
    ):
        for act in ("switch", "reconcile"):
            refused = await browser.send(f"services/{act}", given)
            if act == "switch" or given.get("deployment") != "post":
                assert 'role="alert"' in refused.text, given
                assert EVIL not in refused.text
    assert not (await here.running.authority.deployments.get("post")).disabled


async def what_was_accepted_is_taken_back(here: Town, browser: Browser) -> None:
    authority = here.running.authority
    shell = (await authority.deployments.get("shell")).desired
    surface, capability = min(shell.surfaces), min(shell.capabilities)
    assert f"Take back {surface} from shell" in (await browser.get("services")).text
    given = {"deployment": "shell", "surface": surface}
    gone = await browser.send("services/narrow", given)
    assert f"shell may no longer use {surface}." in gone.text
    await browser.send("services/narrow", {"deployment": "shell", "capability": capability})
    left = (await authority.deployments.get("shell")).desired
    assert left.surfaces == shell.surfaces - {surface}
    assert left.capabilities == shell.capabilities - {capability}
    for wrong in (
        given,
        {"deployment": "shell"},
        {**given, "capability": capability},
        {"deployment": "nobody", "surface": surface},
        {"deployment": "shell", "surface": EVIL},
    ):
        refused = await browser.send("services/narrow", wrong)
        assert 'role="alert"' in refused.text, wrong
        assert EVIL not in refused.text
    assert (await authority.deployments.get("shell")).desired == left


async def test_to_allow_twice_changes_nothing_more(tmp_path: Path) -> None:
    async with town(tmp_path / "home") as here, here.found.inside() as browser:
        await browser.send("services/allow")
        file = here.found.home / "keys" / "shell.ed25519"
        assert file.stat().st_mode & 0o077 == 0
        before = file.read_bytes()
        assert "may call now" in (await browser.send("services/allow")).text
        assert file.read_bytes() == before
        told = await here.running.operating.do("instances/list", {"deployment": "shell"})
        assert len(told["instances"]) == 1
        assert "There are none." in (await browser.get("services/jobs")).text
        file.write_bytes(b"damaged")
        assert 'role="alert"' in (await browser.get("services/jobs")).text
        assert 'aria-labelledby="d-1"' in (await browser.get("services")).text


def test_turns_are_taken_one_by_one_and_each_in_a_second_of_its_own() -> None:
    clock = VirtualClock()
    turns = ShellLock(clock)
    seconds: list[int] = []

    async def take() -> None:
        async with turns.turn():
            seconds.append(int(clock.now()))

    async def all_at_once() -> None:
        await asyncio.gather(*(take() for _ in range(4)))

    run_virtual(all_at_once(), clock=clock)
    assert seconds == [seconds[0] + number for number in range(4)]
