"""`manager status`, `manager dump` and `manager serve` before anything is served."""

import asyncio
import json
import logging
import threading
import warnings
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from backend_listeners import unchanged_logging
from fake_broker import FakeBroker
from memory_listener import MemoryListener

from offsetmgr.cli.app import run
from offsetmgr.server import manager_process

STATUS = {"lease": True, "shards": [], "alarms": [], "started": 0, "store": "topic t"}
SHARD = {
    "partition": 2, "shard_group": 2, "role": "owner", "state": "ACTIVE", "since": 0, "position": 9, "offsets": 2,
    "groups": 1, "lag": 0, "last_error": "", "load_read": 9, "load_total": 9, "unreadable": 0,
}  # fmt: skip


@pytest.mark.parametrize(
    ("status", "alarm"),
    [
        ({}, "no manager has any shard"),
        ({"store": "zookeeper://h:1"}, None),
        ({"shards": [SHARD]}, None),
        ({"shards": [SHARD], "alarms": ["the topic is gone"]}, "manager {address}: the topic is gone"),
        (
            {"shards": [SHARD], "lease": False},
            "manager {address}: it cannot prove that it is in the managers' group",
        ),
        ({"shards": [SHARD | {"role": "standby"}]}, "1 shards have no owner: 2"),
        ({"shards": [SHARD | {"state": "LOADING"}]}, "1 shards are not served yet: 2"),
        (
            {"shards": [SHARD | {"unreadable": 1, "unknown_keys": 3}]},
            "shard 2: its owner cannot read 4 records, so groups may look as if they had committed nothing; its log",
        ),
    ],
)
def test_status_raises_an_alarm_for_each_problem(status: dict[str, Any], alarm: str | None, capsys) -> None:
    with MemoryListener(status=STATUS | status) as listening:
        code = run(["manager", "status", "--bootstrap-server", listening.bootstrap, "--format", "json"])
        shown = capsys.readouterr()
    alarms = [line for line in shown.err.splitlines() if line.startswith("alarm: ")]
    assert (code, len(alarms)) == ((0, 0) if alarm is None else (1, 1))
    assert alarm is None or alarms[0].startswith(f"alarm: {alarm.format(address=listening.bootstrap)}")
    rows = json.loads(shown.out)
    assert [row["unreadable"] for row in rows if row["owner"]] == [
        shard["unreadable"] + shard.get("unknown_keys", 0)
        for shard in status.get("shards", ())
        if shard["role"] == "owner"
    ]


def test_an_alarm_about_a_manager_that_refuses_its_status_names_it_once(tmp_path, capsys) -> None:
    (tmp_path / "rules.toml").write_text('[[rule]]\nprincipals = ["*"]\ngroups = ["g"]\noperations = ["read"]\n')
    with MemoryListener(status=STATUS, rules=tmp_path / "rules.toml") as listening:
        assert run(["manager", "status", "--bootstrap-server", listening.bootstrap]) == 1
    (alarm,) = [line for line in capsys.readouterr().err.splitlines() if "alarm: " in line]
    assert alarm.startswith(f"alarm: manager {listening.bootstrap}: ")
    assert alarm.count(listening.bootstrap) == 1
    assert "describe" in alarm


@pytest.mark.parametrize(("shard", "expected"), [(99, "shards are 0 to 49"), (49, "no manager owns it at this moment")])
def test_a_shard_that_cannot_be_dumped_is_reported_with_the_reason(shard: int, expected: str, capsys) -> None:
    shards = [SHARD | {"partition": number, "role": "standby"} for number in range(50)]
    with MemoryListener(status=STATUS | {"shards": shards}) as listening:
        assert run(["manager", "dump", "--bootstrap-server", listening.bootstrap, "--shard", str(shard)]) != 0
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize("form", ["json", "text"])
def test_an_event_of_the_log_is_one_line_with_its_fields(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    def log(_options: object) -> None:
        logging.getLogger("offsetmgr.manager").warning("shard group lost", extra={"shard_group": 3, "why": "fenced"})

    serve = ["manager", "serve", "--bootstrap-server", "nowhere:1", "--listen", "127.0.0.1:0", "--log-format", form]
    with unchanged_logging(), patch.object(manager_process, "run_manager", log):
        assert run(serve) == 0
    (line,) = capsys.readouterr().err.splitlines()
    if form == "json":
        found = json.loads(line)
        assert found.pop("time").endswith("Z")
        assert found.items() >= {
            "event": "shard group lost", "shard_group": 3, "why": "fenced", "level": "warning",
        }.items()  # fmt: skip
    else:
        assert line.endswith("WARNING shard group lost shard_group=3 why=fenced")


def test_every_line_of_a_log_in_json_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Also those of asyncio, of Python and of threads."""

    def fail(_options: object) -> None:
        loop = asyncio.new_event_loop()
        loop.call_exception_handler({"message": "Task exception was never retrieved", "exception": ValueError("a\nb")})
        loop.close()
        warnings.warn("removed in\nthe next release", UserWarning, stacklevel=1)
        thread = threading.Thread(target=int, args=("x",))
        thread.start()
        thread.join()

    serve = ["manager", "serve", "--bootstrap-server", "nowhere:1", "--listen", "127.0.0.1:0", "--log-format", "json"]
    with unchanged_logging(), patch.object(manager_process, "run_manager", fail):
        assert run(serve) == 0
    events = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [event["logger"] for event in events] == ["asyncio", "py.warnings", "offsetmgr.server.logs"]
    assert ["ValueError" in event.get("exception", "") for event in events] == [True, False, True]


@pytest.mark.parametrize("exists", [False, True])
def test_a_file_is_not_served(exists: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "x.zk"
    if exists:
        file.touch()
    with FakeBroker() as broker, unchanged_logging():
        where = ["--bootstrap-server", broker.bootstrap, "--listen", "127.0.0.1:0", "--store", f"file:{file}"]
        assert run(["manager", "serve", *where]) == 2
    shown = capsys.readouterr().err
    assert "is a file, which cannot serve commits of clients" in shown
    assert "serve zookeeper://, kafka:// or dual:, and copy the file's offsets there with offsets import" in shown
