"""Topics that a whitelist or a blacklist selects: a corpus that Java has checked, and cases outside it.

tests/clients/test_topic_patterns_in_java.py lets Java check the corpus, and compares random patterns in both.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from offsetmgr.core.errors import InvalidPattern, UnsupportedOperation
from offsetmgr.zookeeper.groups.subscription import INTERNAL_TOPICS, TopicFilter, normalized, topics_of

CORPUS: dict[str, Any] = json.loads((Path(__file__).parents[1] / "data" / "topic_patterns.json").read_text())
TOPICS: list[str] = CORPUS["topics"]


@pytest.mark.parametrize("one", CORPUS["patterns"], ids=lambda one: ascii(one["pattern"]))
def test_a_pattern_of_the_corpus_selects_the_same_topics_as_java_or_is_rejected(one: dict[str, Any]) -> None:
    pattern, selected = one["pattern"], one["white_list"]
    if one["here"] == "same":
        assert [topic for topic in TOPICS if TopicFilter(pattern).allows(topic)] == selected
        others = [topic for topic in TOPICS if topic not in selected and topic not in INTERNAL_TOPICS]
        assert [topic for topic in TOPICS if TopicFilter(pattern, excludes=True).allows(topic)] == others
    else:
        with pytest.raises(InvalidPattern if one["here"] == "invalid" else UnsupportedOperation) as refused:
            TopicFilter(pattern)
        assert refused.value.what == f"topic pattern {normalized(pattern)!r}"


def test_a_refusal_names_the_construct() -> None:
    with pytest.raises(UnsupportedOperation) as refused:
        TopicFilter("[^a[b]]x")
    assert refused.value.what == "topic pattern '[^a[b]]x'"
    assert refused.value.why == (
        "uses a negated class that contains another class, which Java 8 and 9 read differently, "
        "which offsetmgr cannot translate from Java reliably"
    )
    with pytest.raises(InvalidPattern, match=r"topic pattern '\*a': is not a regular expression of Java: '\*' follows"):
        TopicFilter("*a")
    with pytest.raises(InvalidPattern) as invalid:
        TopicFilter("x\\d{1,2}")
    assert invalid.value.what == "topic pattern 'x\\\\d{1|2}'"
    assert invalid.value.hint == "a comma in a pattern means |, also between braces"


def test_a_pattern_is_read_as_kafka_reads_it_from_a_properties_file() -> None:
    assert normalized(" \t\"'orders , bills.*'\" ") == "orders|bills.*"
    assert normalized("'a' b'c'") == "a'b'c"


def test_internal_topics_are_selected_only_on_request() -> None:
    assert not TopicFilter("__.*").allows("__consumer_offsets")
    assert TopicFilter("__.*").allows("__consumer_offsets", internal=True)
    assert not TopicFilter("a.*", excludes=True).allows("__consumer_offsets")
    assert TopicFilter("a.*", excludes=True).allows("__consumer_offsets", internal=True)


@pytest.mark.parametrize("name", ["", "white space", "ü", "a\n", "a/b"])
def test_a_name_that_no_broker_accepts_is_never_selected(name: str) -> None:
    assert not TopicFilter(".*").allows(name)
    assert not TopicFilter("nothing", excludes=True).allows(name)


def test_deeply_nested_groups_are_rejected() -> None:
    with pytest.raises(UnsupportedOperation, match="groups nested deeper than 50"):
        TopicFilter("(" * 10_000 + "a" + ")" * 10_000)
    with pytest.raises(UnsupportedOperation, match="classes nested deeper than 50"):
        TopicFilter("[" * 10_000 + "a" + "]" * 10_000)


def test_a_subscription_is_resolved_to_topics() -> None:
    existing = ["b", "a2", "a1", "__consumer_offsets"]
    assert topics_of({"a1": 2, "gone": 1}, "static", existing) == {"a1": 2, "gone": 1}
    assert topics_of({"a.*": 3}, "white_list", existing) == {"a1": 3, "a2": 3}
    assert topics_of({"a.*": 3}, "black_list", existing) == {"b": 3}
    assert topics_of({".*": 1}, "white_list", existing, internal=True) == {
        "__consumer_offsets": 1,
        "a1": 1,
        "a2": 1,
        "b": 1,
    }
    assert topics_of({}, "white_list", existing) == {}


def test_an_unknown_kind_is_static_and_the_first_of_several_patterns_counts() -> None:
    """As in kafka.consumer.TopicCount."""
    assert topics_of({"a.*": 1}, "whitelist", ["a1"]) == {"a.*": 1}
    assert topics_of({"b": 2, "a.*": 1}, "black_list", ["a1", "b"]) == {"a1": 2}
