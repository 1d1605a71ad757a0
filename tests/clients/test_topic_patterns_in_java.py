"""Patterns select the same topics in Java and in Python: a corpus, which Java itself checks, and random patterns.

tests/data/topic_patterns.json contains for each pattern the topics that Kafka's white list selects (null if Java
rejects the pattern), and whether our result is the ``same`` or the pattern is ``refused``.
tests/clients/test_topic_patterns.py checks our results.
"""

import base64
import json
import logging
import os
from collections import Counter
from pathlib import Path
from random import Random
from typing import NamedTuple

import pytest
from java_program import run_java
from random_patterns import TOPICS, random_pattern

from offsetmgr.core.errors import InvalidPattern, UnsupportedOperation
from offsetmgr.zookeeper.groups.subscription import INTERNAL_TOPICS, TopicFilter

pytestmark = [pytest.mark.servers, pytest.mark.matrix]
LOG = logging.getLogger(__name__)

SEED = int(os.environ.get("OFFSETMGR_SEED", "20261122"))
PATTERNS = 100_000 if os.environ.get("OFFSETMGR_SOAK") else 5_000
CORPUS = Path(__file__).parents[1] / "data" / "topic_patterns.json"


class Selected(NamedTuple):
    """The topics that the white list and the black list select, without and with internal topics."""

    white: list[str]
    black: list[str]
    white_with_internal: list[str]
    black_with_internal: list[str]


def in_java(patterns: list[str], topics: list[str]) -> list[Selected | None]:
    """The selection of each pattern in Java; None for a pattern that Java rejects."""
    lines = [" ".join(topics), *(base64.b64encode(one.encode()).decode() for one in patterns)]
    answers = run_java("TopicPatterns", stdin="\n".join(lines) + "\n")
    assert len(answers) == len(patterns)

    def chosen(digits: str, digit: str) -> list[str]:
        return [topic for topic, found in zip(topics, digits, strict=True) if found == digit]

    half = len(topics)
    return [
        None
        if line == "ERROR"
        else Selected(*(chosen(part, digit) for part in (line[:half], line[half:]) for digit in "12"))
        for line in answers
    ]


def in_python(pattern: str, topics: list[str]) -> Selected | str:
    """The selection in Python, ``refused`` for a pattern that Java may accept, or ``invalid`` for one that it
    rejects."""
    try:
        white, black = TopicFilter(pattern), TopicFilter(pattern, excludes=True)
    except InvalidPattern:
        return "invalid"
    except UnsupportedOperation:
        return "refused"
    return Selected(
        *(
            [t for t in topics if each.allows(t, internal=internal)]
            for internal in (False, True)
            for each in (white, black)
        )
    )


def test_the_corpus_matches_java() -> None:
    corpus = json.loads(CORPUS.read_text())
    found = in_java([one["pattern"] for one in corpus["patterns"]], corpus["topics"])
    for one, selected in zip(corpus["patterns"], found, strict=True):
        assert one["white_list"] == (None if selected is None else selected.white), one["pattern"]
        if selected is not None:
            visible = [topic for topic in corpus["topics"] if topic not in INTERNAL_TOPICS]
            assert selected.black == [topic for topic in visible if topic not in selected.white], one["pattern"]


def test_a_random_pattern_selects_the_same_topics_or_is_rejected() -> None:
    LOG.info("seed %d", SEED)
    rng = Random(SEED)
    patterns = [random_pattern(rng) for _ in range(PATTERNS)]
    outcomes: Counter[str] = Counter()
    for pattern, java in zip(patterns, in_java(patterns, TOPICS), strict=True):
        selected = in_python(pattern, TOPICS)
        if java is None:
            assert isinstance(selected, str), f"{pattern!r} is accepted here and rejected by Java"
            outcomes["refused by both"] += 1
        elif selected == "refused":
            outcomes["refused"] += 1
        else:
            assert selected == java, pattern
            outcomes["same"] += 1
    LOG.info("%s", dict(outcomes))
    assert outcomes["same"] > PATTERNS // 5
    assert outcomes["same"] > 2 * outcomes["refused"]
