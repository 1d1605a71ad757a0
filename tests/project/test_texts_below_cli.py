"""Texts below ``cli`` name no options, because a program has none: `Advice` words arguments for both."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "offsetmgr"
OPTION = re.compile(r"(?<![\w-])--[a-z]")
OTHER_PROGRAMS = {
    "core/document.py": "CSS",
    "kafka/client/broker_checks.py": "kafka-acls",
    "kafka/client/groups.py": "kafka-share-groups",
    "kafka/librdkafka.py": "pip",
    "manager/log/kafka/broker_checks.py": "kafka-acls",
    "manager/log/topic.py": "kafka-configs",
    "migration/restart_command.py": "kubectl",
    "sandbox/broker.py": "kafka-storage",
    "sandbox/topics.py": "kafka-topics",
    "zookeeper/admin/plan.py": "kafka-reassign-partitions",
}
"""The modules with options of other programs, or with variables of CSS, which look like options."""


def texts(source: str) -> Iterator[str]:
    """Yields the string constants of a module, except its docstrings."""
    tree = ast.parse(source)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value


def test_no_text_below_the_command_line_names_an_option() -> None:
    modules = {path.relative_to(PACKAGE).as_posix(): path for path in PACKAGE.rglob("*.py")}
    found = {name for name, path in modules.items() if any(map(OPTION.search, texts(path.read_text("utf-8"))))}
    below = {name for name in found if not name.startswith("cli/")} - OTHER_PROGRAMS.keys()
    assert below == set()
