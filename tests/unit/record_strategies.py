"""Hypothesis strategies for keys and values, for the tests of the record formats."""

from __future__ import annotations

from hypothesis import strategies as st

from offsetmgr.records.base import PartitionCommit

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT64 = st.integers(-(1 << 63), (1 << 63) - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=80)
_EDGES = st.sampled_from([(1 << bits) + step for bits in (13, 27, 41) for step in (-1, 0)])
OFFSETS = INT64 | st.integers(0, 1 << 42) | _EDGES
TIMES = INT64 | st.integers(1_600_000_000_000, 1_800_000_000_000)
EXPIRIES = st.none() | st.integers(0, (1 << 63) - 1)
COMMITS: st.SearchStrategy[PartitionCommit] = st.tuples(
    INT32 | st.integers(0, 1100), OFFSETS, st.integers(-1, 200) | INT32, TEXT | st.just("")
)
