"""The last writer of two stores: the evidence decides, and never the larger offset."""

import pytest

from offsetmgr.groups.last_writes import KnownWrite, last_writer

AT = 1_700_000_000_000
CLOCKS_MS = 200


def write(title: str, offset: int, at: int | None = None, changed: str = "", copied: int | None = None) -> KnownWrite:
    return KnownWrite(title, offset, None if at is None else AT + at, changed, copied)


@pytest.mark.parametrize("larger", ["zookeeper", "kafka"])
@pytest.mark.parametrize(
    ("old", "new", "last", "why"),
    [
        ((None, "4 -> 5"), (None, ""), "old", "Z changed while it was watched (4 -> 5), and K stayed at "),
        ((0, ""), (9999, "4 -> 5"), "new", "K changed while it was watched (4 -> 5), and Z stayed at "),
        ((9999, ""), (0, "", 7), "old", "K wrote "),  # only one of both stores has a journal
        ((0, ""), (1201, ""), "new", "; their clocks differ by at most 200 ms"),
        ((1201, ""), (0, ""), "old", "; their clocks differ by at most 200 ms"),
        ((0, ""), (1200, ""), None, ", which is too close to decide: their clocks differ by at most 200 ms"),
        ((0, ""), (0, ""), None, ", which is too close to decide"),
        ((0, ""), (None, ""), None, "the time of the commit in K is unknown"),
        ((None, ""), (0, ""), None, "the time of the commit in Z is unknown"),
    ],
)
def test_the_evidence_decides_and_names_both_stores(larger, old, new, last, why):
    offsets = (90, 40) if larger == "zookeeper" else (40, 90)
    one, other = write("Z", offsets[0], *old), write("K", offsets[1], *new)
    found = last_writer(one, other, CLOCKS_MS)
    assert found.store == {"old": one, "new": other, None: None}[last]
    assert why in found.why
    assert last_writer(other, one, CLOCKS_MS).store == found.store


@pytest.mark.parametrize(("copied", "last"), [((90, 90), 40), ((40, 40), 90), ((5, 5), None), ((40, 90), None)])
def test_a_store_that_still_holds_the_last_copy_is_older_than_one_that_has_changed(copied, last):
    found = last_writer(write("Z", 40, copied=copied[0]), write("K", 90, copied=copied[1]), None)
    assert (found.store and found.store.offset) == last


@pytest.mark.parametrize(
    ("source", "target_at", "last", "why"),
    [
        # a refresh of the copy is no evidence that it is newer, and a later commit of a client leaves it open
        ((40, 90), 60_000, 40, "K still holds the 90 of offsetmgr's last copy, and Z has changed since"),
        ((40, 90), 61_201, None, "K still holds the 90 of offsetmgr's last copy, but its last commit is of "),
        ((89, 89), 60_000, None, "both still hold the offsets of offsetmgr's last copy"),  # plan --shift 1
        ((89, 89), 61_201, 90, "; their clocks differ by at most 200 ms"),
    ],
)
def test_a_commit_after_the_last_copy_is_known_by_its_time(source, target_at, last, why):
    old = write("Z", source[0], 0, copied=source[1])._replace(copied_ms=AT + 60_000)
    found = last_writer(old, write("K", 90, target_at, copied=90)._replace(copied_ms=AT + 60_000), CLOCKS_MS)
    assert (found.store and found.store.offset) == last
    assert why in found.why
    assert found.is_unchanged == why.startswith("both")


@pytest.mark.parametrize(
    ("old", "new", "clocks_ms", "last", "why"),
    [
        (
            *((40, 5000), (90, 0), 0, 40),
            "K wrote 90 at 2023-11-14T22:13:20.000Z, Z wrote 40 at 2023-11-14T22:13:25.000Z;"
            " their clocks differ by at most 0 ms",
        ),
        ((40, 5000), (90, 0), None, None, "but the difference of their clocks could not be measured"),
        ((40, None, "39 -> 40"), (41, None, "39 -> 41"), None, 41, "members that commit to both use the larger offset"),
        ((40, 0), (90, None), 0, None, "READ is denied"),
    ],
)
def test_the_text_is_the_evidence(old, new, clocks_ms, last, why):
    found = last_writer(write("Z", *old), write("K", *new), clocks_ms, "READ is denied")
    assert (found.store and found.store.offset) == last
    assert found.why.endswith(why)
