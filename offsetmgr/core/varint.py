"""Variable-length numbers: seven bits in each byte, the lowest first. Kafka's protocol, Kafka's records and Avro use
this encoding. Kafka's records and Avro store a signed number in zigzag form."""

from __future__ import annotations


def encode_varint(number: int) -> bytes:
    """Encodes a number that is not negative."""
    if number < 0x80:
        return bytes((number,))
    if number < 0x4000:
        return bytes((number & 0x7F | 0x80, number >> 7))
    if number < 0x20_0000:
        return bytes((number & 0x7F | 0x80, number >> 7 & 0x7F | 0x80, number >> 14))
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def decode_varint(data: bytes, at: int, max_bytes: int) -> tuple[int, int]:
    """Returns the number at ``at``, and the position after it. Raises `IndexError` if the data ends within the number,
    and `ValueError` if the number has more than ``max_bytes``."""
    value = 0
    for shift in range(0, 7 * max_bytes, 7):
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise ValueError(f"a number does not end within {max_bytes} bytes")


def zigzag(number: int) -> int:
    """Converts a signed number of up to 64 bits: 0, -1, 1, -2, ... become 0, 1, 2, 3, ..."""
    return (number << 1) ^ (number >> 63)


def unzigzag(number: int) -> int:
    return (number >> 1) ^ -(number & 1)
