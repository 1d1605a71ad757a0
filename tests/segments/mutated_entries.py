"""Mutates log entries by the thousand in a process with bounded memory, and checks how the reader handles each.

Arguments: ``SEED COUNT``. Prints a JSON object: the number of mutations by outcome, the growth of the memory in KiB,
and the first wrong results.

The reader may accept only content that the checksum proves. The checksum does not cover an entry's offset and, in
format 2, its leader epoch. If a mutation changes only these, the entry has the same records under shifted offsets, and
the examination of the log reports a suspicion if the entry overlaps with others. In half of the mutations, the script
corrects the checksum. It then proves nothing, and the reader must reject every entry that violates the format.
"""

from __future__ import annotations

import io
import json
import random
import resource
import struct
import sys
import zlib
from collections import Counter
from pathlib import Path

from crc32c import crc32c
from end_of_transaction import end_of_transaction

from offsetmgr.core.errors import CorruptData, LimitExceeded, OffsetMgrError, UnknownVersion
from offsetmgr.segments.batch_builder import Producer, batch, message_set
from offsetmgr.segments.batch_reader import Record
from offsetmgr.segments.entries import EntryReader
from offsetmgr.segments.recovery import examine

TIME = 1_700_000_000_000
MEMORY_GROWTH_LIMIT = 256 * 1024 * 1024
"""Bytes of address space beyond those at the start. An allocation beyond the limit fails, and the script reports it."""
MAX_DECOMPRESSED_BYTES = 8 * 1024 * 1024
EXTREMES = (0, 1, 13, 14, 48, 49, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
TYPED_ERRORS = (CorruptData, UnknownVersion, LimitExceeded)


def records(first: int, number: int, *, time: bool = True, headers: bool = False) -> list[Record]:
    return [
        Record(
            first + n,
            TIME + n if time else None,
            None if n % 4 == 3 else b"key %d" % (n % 3),
            None if n % 5 == 4 else b"value %d " % n * (1 + 7 * n),
            (("h", b"1"), ("null", None)) if headers and n % 2 else (),
        )
        for n in range(number)
    ]


def entries(first: int) -> list[bytes]:
    """Returns one entry of every kind, each with the offsets from ``first`` to ``first + 5``."""
    writer = Producer(4000, 2, 17, transactional=True)
    return [
        *(message_set(records(first, 6, time=False), 0, codec) for codec in (1, 2, 3)),
        *(message_set(records(first, 6), 1, codec) for codec in (1, 2, 3)),
        *(batch(records(first, 6, headers=True), codec, leader_epoch=3) for codec in range(5)),
        batch(records(first, 6), 2, producer=writer, leader_epoch=3),
        batch(records(first, 1), last_offset=first + 5),  # compaction removed the others
        end_of_transaction(first + 5, writer, commit=True, timestamp=TIME),
        message_set([Record(first + 5, None, b"k", b"alone")], 0),
        message_set([Record(first + 5, TIME, None, None)], 1),
    ]


BEFORE = batch(records(94, 6))
SEEDS = entries(100)
BEHIND = [message_set([Record(106, TIME, b"next", b"one")], 1), batch(records(106, 2), 4)]
KNOWN = [BEFORE, *SEEDS, *BEHIND]


def mutated(chance: random.Random, entry: bytes) -> bytes:
    out = bytearray(entry)
    for _ in range(chance.choice((1, 1, 1, 2, 4))):
        at = chance.randrange(len(out)) if out else 0
        kind = chance.randrange(8)
        if kind == 0:
            out[at : at + 1] = bytes([chance.randrange(256)])
        elif kind == 1 and out:
            out[at] ^= 1 << chance.randrange(8)
        elif kind == 2:
            at = min(at, 61) if chance.random() < 0.5 else at
            out[at : at + 4] = struct.pack(">I", chance.choice(EXTREMES))
        elif kind == 3:
            out[at : at + chance.randint(1, 40)] = b""
        elif kind == 4:
            out[at:at] = chance.randbytes(chance.randint(1, 40))
        elif kind == 5:
            other = chance.choice(KNOWN)
            out[at:] = other[chance.randrange(len(other)) :]
        elif kind == 6:
            out[at : at + 64] = bytes(len(out[at : at + 64]))
        elif len(out) >= 62:
            field, form = chance.choice(((0, "q"), (8, "i"), (12, "I"), (21, "h"), (23, "i"), (43, "q"), (57, "i")))
            low, high = {"q": (-(2**63), 2**63 - 1), "i": (-(2**31), 2**31 - 1), "I": (0, 2**32 - 1), "h": (0, 255)}[
                form
            ]
            value = chance.choice((low, high, max(low, -1), 0, chance.randint(low, high), chance.randint(0, 200)))
            struct.pack_into(">" + form, out, field, value)
    return bytes(out)


def with_valid_checksum(data: bytes) -> bytes:
    """Sets the size and the checksum that the bytes require."""
    out = bytearray(data)
    if len(out) < 26:
        return data
    struct.pack_into(">i", out, 8, len(out) - 12)
    if out[16] == 2:
        struct.pack_into(">I", out, 17, crc32c(bytes(out[21:])))
    else:
        struct.pack_into(">I", out, 12, zlib.crc32(out[16:]))
    return bytes(out)


def same_under_the_checksum(data: bytes, known: bytes) -> bool:
    """Whether two entries differ at most in bytes that no checksum covers. (Java reads versions above 2 as 2.)"""
    if data[8:12] != known[8:12]:
        return False
    if known[16] < 2:
        return data[12:] == known[12:]
    return 2 <= data[16] <= 0x7F and data[17:] == known[17:]


def check_raw(data: bytes) -> tuple[str, str]:
    """Examines a log around a mutated entry with its original checksum. Returns the outcome, and the defect or ""."""
    log = BEFORE + data
    found = examine(io.BytesIO(log), 94, "log")
    suspicious = moved = False
    walk = EntryReader(io.BytesIO(log), "log", end=found.valid_bytes)
    last = 93
    for entry in walk:
        knowns = [known for known in KNOWN if same_under_the_checksum(entry.data, known)]
        if not knowns:
            return "accepted", f"an entry that was never written: {entry.data.hex()}"
        (offset,) = struct.unpack_from(">q", knowns[0])
        try:
            read = entry.batch(limit=MAX_DECOMPRESSED_BYTES)
        except TYPED_ERRORS:
            suspicious = True
            continue
        original = next(iter(EntryReader(io.BytesIO(knowns[0]), "known"))).batch()
        # Compressed messages of format 0 carry their own offsets.
        by = 0 if read.magic == 0 and read.codec else entry.offset - offset
        if read.records != [record._replace(offset=record.offset + by) for record in original.records]:
            return "accepted", f"records that were never written: {entry.data.hex()}"
        if entry.offset != offset and read.last_offset <= last:
            moved = True
        last = read.last_offset
    if (moved or suspicious) and not found.suspicion_count:
        return "accepted", f"an entry out of order, without a suspicion: {log.hex()}"
    if found.damage is not None:
        return "damage", ""
    return ("suspicious" if found.suspicion_count else "sound"), ""


def check_corrected(data: bytes) -> tuple[str, str]:
    """Reads an entry with a valid checksum. Returns the outcome, and the defect or ""."""
    try:
        for entry in EntryReader(io.BytesIO(data), "log"):
            entry.header()
            entry.intact()
            found = entry.batch(controls=True, limit=MAX_DECOMPRESSED_BYTES)
            if sum(len(r.key or b"") + len(r.value or b"") for r in found.records) > MAX_DECOMPRESSED_BYTES:
                return "records", "records over the limit"
    except TYPED_ERRORS as error:
        return type(error).__name__, ""
    return "records", ""


def main(seed: int, count: int) -> None:
    chance = random.Random(seed)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY_GROWTH_LIMIT, size + MEMORY_GROWTH_LIMIT))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    for number in range(count):
        entry = mutated(chance, chance.choice(SEEDS))
        raw = number % 2 == 0
        try:
            outcome, found = (
                check_raw(entry + chance.choice(BEHIND)) if raw else check_corrected(with_valid_checksum(entry))
            )
        except OffsetMgrError as error:
            outcome, found = "error", f"{type(error).__name__} ({error}) for {entry.hex()}"
        except Exception as error:  # the reader must raise only OffsetMgrError
            outcome, found = "crash", f"{type(error).__name__} ({error}) for {entry.hex()}"
        outcomes[f"{'raw' if raw else 'proved'}: {outcome}"] += 1
        if found and len(wrong) < 5:
            wrong.append(f"mutation {number}: {found}")
    more = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    sys.stdout.write(json.dumps({"outcomes": outcomes, "kib": more, "wrong": wrong}) + "\n")


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
