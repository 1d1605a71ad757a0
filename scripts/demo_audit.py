"""The last chapter of `scripts/demo spark`: an audit of what the other chapters have left in the offsets topic."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from demo_stage import chapter, check, offsetmgr, say


def show(bootstrap: str, before: Path, directory: Path, unread: Mapping[str, int]) -> None:
    """``before`` is a snapshot of the groups before the periods; ``directory`` stays, with the page in it. ``unread``:
    the groups that have not read everything, and how many records they have not."""
    chapter("An audit of the offsets topic, compared with a snapshot from before the periods")
    say(", ".join(f"{count} records came meanwhile, for {group}" for group, count in unread.items()))
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
    check(sum(row["lag"] for row in lags) == expected["lag"], f"offsetmgr offsets lag does not say {expected}")
    found = {name: int(shown[name].replace(",", "")) for name in expected}
    check(found == expected, f"the page says {found}, and right is {expected}")
    check("only in the log" in page, "the page does not show the new groups as differences")
    told = ", ".join(f"{name} {value}" for name, value in found.items())
    say(f"the page and offsetmgr offsets lag say the same: {told}")
    say(f"to be read in any browser: {directory / 'index.html'}")
