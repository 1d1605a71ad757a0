"""The `kubectl` commands of a rollout."""

from __future__ import annotations

import pytest

from offsetmgr.core.commit_mode import CommitMode
from offsetmgr.core.errors import UsageError
from offsetmgr.migration.rollout import Rollout


def test_the_settings_are_environment_variables_and_setting_them_starts_the_rollout() -> None:
    rollout = Rollout("deployment/{group}", "prod", "east", timeout_s=90).of_group("shop")
    assert rollout.command("shop", CommitMode.DUAL) == (
        "kubectl --context east --namespace prod set env deployment/shop OFFSETS_STORAGE=kafka DUAL_COMMIT_ENABLED=true"
        " && kubectl --context east --namespace prod rollout status deployment/shop --timeout=90s"
    )
    assert rollout.undo("shop", CommitMode.ZOOKEEPER) == (
        "kubectl --context east --namespace prod rollout undo deployment/shop"
        " && kubectl --context east --namespace prod rollout status deployment/shop --timeout=90s"
    )
    assert rollout.test() == "kubectl --context east --namespace prod auth can-i patch deployment/shop"


def test_a_command_of_the_user_sets_the_settings_in_both_directions() -> None:
    rollout = Rollout("statefulset/shop", configure="configure {group} {settings}")
    end = " && kubectl rollout restart statefulset/shop && kubectl rollout status statefulset/shop --timeout=600s"
    there = "configure shop 'offsets.storage=kafka dual.commit.enabled=true'"
    assert rollout.command("shop", CommitMode.DUAL) == there + end
    assert rollout.undo("shop", CommitMode.ZOOKEEPER) == "configure shop offsets.storage=zookeeper" + end


@pytest.mark.parametrize(
    "workload", ["shop", "pod/shop", "deployment/", "deployment/a b", "deployment/-x", "deployment/A"]
)
def test_another_workload_is_rejected(workload: str) -> None:
    with pytest.raises(UsageError, match="neither deployment/NAME nor statefulset/NAME with a NAME of a-z"):
        Rollout(workload).of_group("shop")


def test_a_command_that_names_a_member_is_rejected() -> None:
    with pytest.raises(UsageError, match="once for all members"):
        Rollout("deployment/shop", configure="ssh {host} configure").of_group("shop")
