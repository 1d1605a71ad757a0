"""The `kubectl` commands that restart the members of a group in a Kubernetes Deployment or StatefulSet."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass, replace
from typing import Final

from offsetmgr.core.advice import Advice
from offsetmgr.core.commit_mode import SETTINGS, CommitMode
from offsetmgr.core.errors import UsageError
from offsetmgr.migration.restart_command import fill_template, placeholders

_WORKLOAD: Final = re.compile(r"(deployment|statefulset)/[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
KILL_AFTER_S: Final = 30
"""`kubectl rollout status` ends after its own timeout. If it does not, offsetmgr kills it this much later."""


class InvalidWorkload(UsageError):
    """Kubernetes allows no workload of this name."""


@dataclass(frozen=True, slots=True)
class Rollout:
    """The restart of a workload with other settings.

    Without ``configure``, the settings are environment variables of the workload (``OFFSETS_STORAGE``,
    ``DUAL_COMMIT_ENABLED``), and setting them starts the rollout. ``configure`` is the template of a command that
    changes the settings elsewhere, such as in a ConfigMap; the rollout is then started by itself.
    """

    workload: str
    namespace: str | None = None
    context: str | None = None
    configure: str | None = None
    timeout_s: float = 600

    def of_group(self, group: str) -> Rollout:
        """Returns the rollout with the group in the workload's name. Raises `InvalidWorkload` if the name is not one of
        a Deployment or StatefulSet, and `UsageError` if ``configure`` names a member."""
        workload = self.workload.replace("{group}", group)
        if not _WORKLOAD.fullmatch(workload):
            raise InvalidWorkload(
                Advice("{kubernetes} {}", workload),
                "it is neither deployment/NAME nor statefulset/NAME with a NAME of a-z, 0-9, '-' and '.'",
                Advice("as in {kubernetes} deployment/shop"),
            )
        if {"host", "member"} & placeholders(self.configure or ""):
            why = "it contains {host} or {member}, but it is run once for all members"
            raise UsageError(Advice("{configure}"), why, "use {settings}, {phase} and {group}")
        return replace(self, workload=workload)

    def command(self, group: str, phase: CommitMode) -> str:
        """Returns the shell command that changes the settings and waits for the end of the rollout."""
        if self.configure is None:
            pairs = [f"{key.upper().replace('.', '_')}={value}" for key, value in SETTINGS[phase].properties]
            begin = self.kubectl("set", "env", self.workload, *pairs)
        else:
            own = fill_template(self.configure, group=group, member=self.workload, host=None, phase=phase)
            begin = f"{own} && {self.kubectl('rollout', 'restart', self.workload)}"
        return f"{begin} && {self._status}"

    def undo(self, group: str, start: CommitMode) -> str:
        """Returns the shell command of the way back, to the settings of the phase ``start``."""
        if self.configure is not None:
            return self.command(group, start)
        return f"{self.kubectl('rollout', 'undo', self.workload)} && {self._status}"

    def test(self) -> str:
        """Returns the shell command that checks the permission to change the workload."""
        return self.kubectl("auth", "can-i", "patch", self.workload)

    def kubectl(self, *words: str) -> str:
        """Returns a `kubectl` command line."""
        where = [("--context", self.context), ("--namespace", self.namespace)]
        options = [word for option, value in where if value is not None for word in (option, value)]
        return shlex.join(["kubectl", *options, *words])

    @property
    def _status(self) -> str:
        return self.kubectl("rollout", "status", self.workload, f"--timeout={self.timeout_s:g}s")
