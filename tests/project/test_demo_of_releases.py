"""`scripts/demo --broker-version`: a whole migration by rolling bounces on each release, with the commands that an
operator types."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from release_environment import releases

pytestmark = [pytest.mark.servers, pytest.mark.matrix]
DEMO = Path(__file__).parents[2] / "scripts" / "demo_migration.py"


@pytest.mark.parametrize("release", releases("2.8.2"))
def test_two_groups_go_to_kafka_and_back_and_consume_every_record_once(release: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(DEMO), "--broker-version", release],
        cwd=tmp_path,
        env={**os.environ, "XDG_STATE_HOME": str(tmp_path / "state")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" seen 1 time") == 2, done.stdout
    assert "0 lost messages" in done.stdout
    assert not (tmp_path / "state").exists()
