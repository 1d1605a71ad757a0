"""A stand-in for `kubectl` with one Deployment or StatefulSet, whose pods are real old consumers.

The program `kubectl` in `Workload.directory` sends its arguments to the test, which records them in `Workload.asked`
and does what a cluster does: a change of the environment variables or `rollout restart` replaces the pods one after the
other, `rollout status` waits for that, and `rollout undo` returns to the revision before.
"""

from __future__ import annotations

import json
import re
import socketserver
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

from offsetmgr.sandbox import OldConsumer

_PROGRAM = """#!{python}
import json, socket, sys
s = socket.socket(socket.AF_UNIX)
s.connect({socket!r})
s.sendall(json.dumps(sys.argv[1:]).encode() + b"\\n")
code, text = json.loads(s.makefile().readline())
print(text, file=sys.stderr if code else sys.stdout)
sys.exit(code)
"""


class Workload:
    """A workload of ``replicas`` pods. A pod of a Deployment starts before its predecessor stops (maxSurge), one of a
    StatefulSet afterwards. With ``stuck``, the first new pod never becomes ready, and the rollout does not go on.

    ``config`` is the content of a ConfigMap: settings that pods without environment variables use. ``revisions`` are
    the pod templates, ``consumers`` all pods that were started.
    """

    def __init__(self, directory: Path, name: str, make: Callable[[Path], OldConsumer], replicas: int = 2) -> None:
        self.name, self.directory, self.stuck = name, directory, False
        self.asked: list[list[str]] = []
        self.config: dict[str, str] = {}
        self.revisions: list[dict[str, str]] = [{}]
        self.pods: list[tuple[OldConsumer, dict[str, str]]] = []
        self.consumers: list[OldConsumer] = []
        self._pause = threading.Event()
        self._make, self._count, self._replicas = make, 0, replicas
        self._rollout: threading.Thread | None = None
        workload = self

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                words = json.loads(self.rfile.readline())
                workload.asked.append(words)
                self.wfile.write(json.dumps(workload.answer(words)).encode() + b"\n")

        socket = directory / "k"
        self._server = socketserver.ThreadingUnixStreamServer(str(socket), Handler)
        program = directory / "kubectl"
        program.write_text(_PROGRAM.format(python=sys.executable, socket=str(socket)))
        program.chmod(0o755)

    def answer(self, words: Sequence[str]) -> tuple[int, str]:
        """Executes the command; returns its exit code and output."""
        plain = [word for n, word in enumerate(words) if word != "--namespace" and words[n - 1] != "--namespace"]
        match plain:
            case ["auth", "can-i", "patch", self.name]:
                return 0, "yes"
            case ["set", "env", self.name, *pairs]:
                wanted = self.revisions[-1] | dict(pair.split("=", 1) for pair in pairs)
                if wanted != self.revisions[-1]:
                    self._roll_out(wanted)
                return 0, f"{self.name} env updated"
            case ["rollout", "restart", self.name]:
                self._roll_out(self.revisions[-1] | {"restartedAt": str(len(self.revisions))})
                return 0, f"{self.name} restarted"
            case ["rollout", "undo", self.name]:
                self.stuck = False
                self._roll_out(dict(self.revisions[-2]))
                return 0, f"{self.name} rolled back"
            case ["rollout", "status", self.name, timeout]:
                found = re.fullmatch(r"--timeout=([0-9.]+)s", timeout)
                assert found, timeout
                if not self._join(float(found[1])):
                    return 1, "error: timed out waiting for the condition"
                return 0, f"{self.name} successfully rolled out"
            case _:
                return 1, f"error: unexpected {words}"

    def _join(self, seconds: float) -> bool:
        if self._rollout is not None:
            self._rollout.join(seconds)
        return self._rollout is None or not self._rollout.is_alive()

    def _roll_out(self, template: dict[str, str]) -> None:
        self.revisions.append(template)
        self._rollout = threading.Thread(target=self._replace_pods, args=(template,))
        self._rollout.start()

    def _replace_pods(self, template: dict[str, str]) -> None:
        """Replaces the pods of other templates, unless another rollout begins meanwhile."""
        for number, (old, used) in enumerate(self.pods):
            while self.stuck and self.revisions[-1] is template:
                self._pause.wait(0.05)
            if self.revisions[-1] is not template or used == template:
                continue
            if self.name.startswith("statefulset/"):
                old.stop()
                self.pods[number] = self._pod(template)
            else:
                self.pods[number] = self._pod(template)
                old.stop()

    def _pod(self, template: dict[str, str]) -> tuple[OldConsumer, dict[str, str]]:
        self._count += 1
        pod = self._make(self.directory / f"pod-{self._count}")
        settings = {name.upper().replace(".", "_"): value for name, value in self.config.items()} | template
        pod.offsets_storage = "kafka" if settings.get("OFFSETS_STORAGE") == "kafka" else "zookeeper"
        pod.dual_commit = settings.get("DUAL_COMMIT_ENABLED") == "true"
        pod.start()
        self.consumers.append(pod)
        return pod, template

    def __enter__(self) -> Workload:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.pods = [self._pod({}) for _ in range(self._replicas)]
        return self

    def __exit__(self, *_exit: object) -> None:
        self.stuck = False
        self._join(60)
        self._server.shutdown()
        self._server.server_close()
        for running, _template in self.pods:
            running.stop()
