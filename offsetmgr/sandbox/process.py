"""`ServerProcess`: a server as a child process, with start, stop, kill, freeze and thaw."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final, Self

from offsetmgr.core.errors import SandboxError
from offsetmgr.sandbox import jars
from offsetmgr.sandbox.java import LOG4J_FLAGS, java_command
from offsetmgr.sandbox.process_ref import ProcessRef, wait_until
from offsetmgr.sandbox.watchdog import Watchdog

_watchdog = Watchdog()
_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]")


class ServerProcess(ABC):
    """One server as a child process with its own directory. The constructor performs no I/O.

    A ``detached`` server keeps running after this program has ended; any other server is killed when this program ends,
    whatever the reason.
    """

    name = "server"
    start_timeout_s = 90.0
    stop_timeout_s = 20.0
    jvm: Sequence[str]
    """The flags of the JVM."""

    def __init__(self, directory: Path | str, *, detached: bool = False) -> None:
        self.directory = Path(directory)
        self.detached = detached
        self._process: subprocess.Popen[bytes] | None = None
        self._ref: ProcessRef | None = None
        self._log_start = 0
        self.on_launch: Callable[[ServerProcess], object] | None = None
        """Called as soon as the process exists, before the server is ready, so that a caller can record the process."""

    @abstractmethod
    def _command(self) -> list[str]:
        """Writes the server's files into its directory and returns its command line."""

    @abstractmethod
    def _is_ready(self) -> bool:
        """Returns whether the server is ready to serve clients."""

    @property
    def log_file(self) -> Path:
        """The file that receives the server's stderr, and also its stdout unless `_stdout` returns another file."""
        return self.directory / "log.txt"

    @property
    def ref(self) -> ProcessRef:
        """The running process. Raises `SandboxError` before `start`."""
        if self._ref is None:
            raise SandboxError(f"{self.name} has not been started")
        return self._ref

    @property
    def pid(self) -> int:
        return self.ref.pid

    def running(self) -> bool:
        """Returns whether the process exists, even if it is frozen."""
        if self._process is not None:
            self._process.poll()  # collects the exit status, so that no zombie is left
        return self._ref is not None and self._ref.alive()

    def start(self) -> Self:
        """Starts the server and waits until it is ready. A restart uses the same directory and port.

        Raises `SandboxError` with the end of the log if the server ends or is not ready in time.
        """
        if self.running():
            return self
        try:
            self._launch()
            # Do not call `_is_ready` again after it has returned True, because it returns False while a topic is being
            # created.
            answered = wait_until(lambda: not self.running() or self._is_ready(), self.start_timeout_s)
            ended = not self.running()
            if ended or not answered:
                what = "ended while starting" if ended else f"was not ready within {self.start_timeout_s:g} s"
                raise SandboxError(f"{self.name} {what}", log_tail(self.log_file), f"see {self.log_file}")
        except BaseException:
            self.kill()
            raise
        return self

    def stop(self) -> bool:
        """Sends SIGTERM, and sends SIGKILL if the server still runs after `stop_timeout_s` seconds. Returns whether
        SIGTERM sufficed."""
        clean = self._ref.stop(self.stop_timeout_s) if self.running() and self._ref else True
        self._forget_process()
        return clean

    def kill(self) -> None:
        """Sends SIGKILL and waits until the process has ended."""
        if self._ref is not None:
            self._ref.signal_group(signal.SIGKILL)
            if not wait_until(lambda: not self.running(), 10.0):
                raise SandboxError(f"cannot kill {self.name}", f"process {self._ref.pid} still runs 10 s after SIGKILL")
        self._forget_process()

    def freeze(self) -> None:
        """Sends SIGSTOP: the process keeps its connections and its memory, but does not run. This method returns after
        all threads of the process have stopped, which can take a moment on a busy machine."""
        self.ref.signal_group(signal.SIGSTOP)
        if not wait_until(lambda: self.ref.stopped() or not self.running(), 10.0):
            raise SandboxError(f"cannot freeze {self.name}", f"process {self.pid} still runs 10 s after SIGSTOP")

    def thaw(self) -> None:
        """Sends SIGCONT, so that a frozen process continues."""
        self.ref.signal_group(signal.SIGCONT)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _stdout(self) -> Path | None:
        """Returns the file for stdout, or None if stdout goes to the log."""
        return None

    def log_of_this_run(self) -> bytes:
        """Returns the log since the last start."""
        if not self.log_file.exists():
            return b""
        with self.log_file.open("rb") as file:
            file.seek(self._log_start)
            return file.read()

    def _settings_file(self, name: str, settings: Mapping[str, object]) -> str:
        """Writes a Java properties file into the server's directory, and returns its path. Java reads such a file as
        ISO-8859-1, so the escapes of Java replace all characters that are not ASCII."""
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        file = self.directory / name
        file.write_text(_NOT_ASCII.sub(lambda found: _java_escape(found[0]), text), encoding="utf-8")
        return str(file)

    def _java(self, jar_sets: Iterable[str], main: str, *arguments: str) -> list[str]:
        """Returns the command line of a main class of these sets of jars (`jars.SETS`)."""
        return java_command(map(jars.resolve, jar_sets), main, arguments, jvm=(*self.jvm, *LOG4J_FLAGS))

    def _launch(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        command, output = self._command(), self._stdout()
        self._log_start = self.log_file.stat().st_size if self.log_file.exists() else 0
        with contextlib.ExitStack() as files:
            log = files.enter_context(self.log_file.open("ab"))
            out = files.enter_context(output.open("ab")) if output else log
            self._process = subprocess.Popen(
                command, cwd=self.directory, stdin=subprocess.DEVNULL, stdout=out, stderr=log, start_new_session=True
            )
        self._ref = ProcessRef.of(self._process.pid)
        if not self.detached:
            _watchdog.add(self._ref)
        if self.on_launch is not None:
            self.on_launch(self)

    def _forget_process(self) -> None:
        if self._process is not None:
            self._process.wait()
            if not self.detached and self._ref is not None:
                _watchdog.remove(self._ref)
        self._process = self._ref = None


def log_tail(path: Path, lines: int = 5, size: int = 8192) -> str:
    """Returns the last lines of a log that contain an error. If no line contains an error, returns the last lines of
    the log. The lines are joined into one line."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - size))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return "it wrote no log"
    written = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    with_errors = [line for line in written if any(word in line for word in ("ERROR", "FATAL", "Exception"))]
    return " | ".join((with_errors or written)[-lines:]) or "its log is empty"


def _java_escape(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[at : at + 4]}" for at in range(0, len(units), 4))
