"""`Unreachable` and `TimedOut` are also errors of Python, and stay what they are where offsetmgr catches `OSError`."""

import copy
import pickle
from pathlib import Path

import pytest

from offsetmgr.core.atomic_file import replace_file
from offsetmgr.core.errors import FileFailure, OffsetMgrError, TimedOut, Unreachable, os_error_as
from offsetmgr.core.retry import UnusableAddress


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [(Unreachable, ConnectionError), (UnusableAddress, ConnectionError), (TimedOut, TimeoutError)],
)
def test_an_error_keeps_its_arguments_and_its_text(kind: type[OffsetMgrError], builtin: type[OSError]) -> None:
    error = kind("broker h:1", "no answer", "try again")
    for one in (error, copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(one), one.args) == (kind, ("broker h:1", "no answer", "try again"))
        assert (str(one), one.hint) == ("broker h:1: no answer", "try again")
    with pytest.raises(builtin) as raised:
        raise error
    assert (raised.value.errno, raised.value.strerror) == (None, None)


def test_a_server_that_fails_while_a_file_is_written_is_not_a_failure_of_the_file(tmp_path: Path) -> None:
    def read(_: object) -> None:
        raise TimedOut("broker h:1", "no answer")

    with pytest.raises(TimedOut, match="broker h:1: no answer"):
        replace_file(tmp_path / "offsets.csv", read, overwrite=True)
    with pytest.raises(TimedOut, match="broker h:1: no answer"), os_error_as(FileFailure, "file"):
        read(None)
