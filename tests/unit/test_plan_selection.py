"""Selection of a plan's groups: by name, by glob, or all groups."""

from __future__ import annotations

import time

from stopwatch import loop_s

from offsetmgr.migration.plan import PlanOptions


def test_names_globs_and_all() -> None:
    assert PlanOptions().selects_group("any")
    assert PlanOptions(groups=("billing", "stock-*")).selects_group("billing")
    assert PlanOptions(groups=("billing", "stock-*")).selects_group("stock-7")
    assert not PlanOptions(groups=("billing", "stock-*")).selects_group("billing-2")


def test_a_group_whose_name_looks_like_a_glob_is_found_by_its_name() -> None:
    options = PlanOptions(groups=("job[1]",))

    assert options.literal_first(["job[1]", "job1"]).selects_group("job[1]")
    assert not options.literal_first(["job[1]", "job1"]).selects_group("job1")
    assert options.literal_first(["job1"]).selects_group("job1")


def test_the_reverse_plan_of_twenty_thousand_groups_is_not_quadratic() -> None:
    names = tuple(f"group-{n}" for n in range(20_000))
    options = PlanOptions(groups=names)

    began = time.thread_time()
    found = sum(options.selects_group(name) for name in names)
    others = sum(options.selects_group(f"other-{n}") for n in range(20_000))

    assert (found, others) == (20_000, 0)
    assert time.thread_time() - began < 2_000 * loop_s()  # a comparison of each name with every other takes minutes


def test_options_with_the_same_selection_are_equal() -> None:
    assert PlanOptions(groups=("a",)) == PlanOptions(groups=("a",))
    assert PlanOptions(groups=("a",)) != PlanOptions(groups=("b",))
