"""Recognises the clients that store their state in the metadata of commits.

Such a state belongs to the committed number. parallel-consumer stores which records above the offset it has processed
(``OffsetSimpleSerialisation``), and Kafka Streams stores the stream time (``TopicPartitionMetadata``). If another
number is committed, the metadata must not be kept: parallel-consumer would skip records. Pure.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections import Counter
from typing import Final

from offsetmgr.core.plurals import count_of

_PARALLEL_CONSUMER: Final = frozenset(b"L\xeelanJosep")
"""The first bytes of parallel-consumer's encodings (``OffsetEncoding``)."""
_STREAMS_TIMESTAMP, _STREAMS_STATE = 1, 2
_STREAMS_MIN_BYTES: Final = 9
"""The version byte and the time."""
_MAX_TIME_MS: Final = 1 << 43
_MIN_BYTES: Final = 4
_DROPS: Final = "drops "


def form_of(metadata: str) -> str:
    """Returns the form of the metadata, as a text for messages.

    >>> form_of("AQAAAZpCZ8AA"), form_of("checked by hand")
    ("Kafka Streams' timestamp", "a client's own text")
    """
    try:
        data = b64decode(metadata, validate=True)
    except (binascii.Error, ValueError):
        return "a client's own text"
    if len(data) >= _STREAMS_MIN_BYTES and data[0] in (_STREAMS_TIMESTAMP, _STREAMS_STATE):
        exact = data[0] == _STREAMS_STATE or len(data) == _STREAMS_MIN_BYTES
        if exact and -1 <= int.from_bytes(data[1:_STREAMS_MIN_BYTES], signed=True) < _MAX_TIME_MS:
            return "Kafka Streams' timestamp"
    if len(data) >= _MIN_BYTES and data[0] in _PARALLEL_CONSUMER:
        return "parallel-consumer's encoding"
    return "a client's own text"


def with_drop(note: str, metadata: str) -> str:
    """Returns the note of a change that drops ``metadata``."""
    if not metadata:
        return note
    return f"{note}; {_DROPS}{form_of(metadata)}" if note else f"{_DROPS}{form_of(metadata)}"


def dropped_form(note: str) -> str:
    """Returns the form of the metadata that a change drops according to its note; "" if it drops none."""
    return note.rpartition(_DROPS)[2] if _DROPS in note else ""


def dropped_text(forms: Counter[str]) -> str:
    """Returns the number of offsets whose metadata is dropped, with the forms, as a text for messages.

    >>> dropped_text(Counter({"parallel-consumer's encoding": 2}))
    "the metadata of 2 offsets (parallel-consumer's encoding)"
    """
    named = ", ".join(f"{number:,} {form}" if len(forms) > 1 else form for form, number in forms.most_common())
    return f"the metadata of {count_of(sum(forms.values()), 'offset')} ({named})"
