"""The last chapter of `scripts/demo spark`: an audit of the offsets topic after the other chapters."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from demo_stage import chapter, check, offsetmgr, say


def show(bootstrap: str, before: Path, directory: Path, unread: Mapping[str, int]) -> None:
    """Runs the audit and checks its page.

    ``before`` is a snapshot of the groups from before the periods. ``directory`` gets the page and stays. ``unread``
    contains the lag of each group that has one.
    """
    chapter("An audit of the offsets topic, compared with a snapshot from before the periods")
    say(", ".join(f"{count} records were produced meanwhile for {group}" for group, count in unread.items()))
    connect = ["--bootstrap-server", bootstrap]
    # 1: the groups of the two applications are not in the snapshot.
    offsetmgr("spark", "audit", *connect, "-o", str(directory), "--compare", f"file:{before}", expect=1)
    lags = json.loads(offsetmgr("offsets", "lag", *connect, "--all-groups", "--format", "json", show=False))
    page = (directory / "index.html").read_text(encoding="utf-8")
    shown = dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", page))
    expected = {
        "groups": len({row["group"] for row in lags}),
        "committed offsets": len(lags),
        "lag": sum(unread.values()),
    }
    check(sum(row["lag"] for row in lags) == expected["lag"], f"offsetmgr offsets lag does not show {expected}")
    found = {name: int(shown[name].replace(",", "")) for name in expected}
    check(found == expected, f"the page shows {found} instead of {expected}")
    check("only in the log" in page, "the page does not show the new groups as differences")
    counts = ", ".join(f"{name} {value}" for name, value in found.items())
    say(f"the page and offsetmgr offsets lag show the same: {counts}")
    say(f"open it in a browser: {directory / 'index.html'}")
