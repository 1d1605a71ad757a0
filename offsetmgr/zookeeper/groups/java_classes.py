"""Java's predefined character classes, restricted to the characters of topic names. Pure.

Patterns are matched only against topic names, which consist of the 65 characters ``[a-zA-Z0-9._-]``. A class is
therefore represented by the subset of these characters that it matches. Source: java.util.regex.Pattern's
documentation.
"""

from __future__ import annotations

import re
import string
import unicodedata
from typing import Final

ALPHABET: Final = frozenset(string.ascii_letters + string.digits + "._-")
"""The characters of topic names (kafka.common.Topic.legalChars)."""

_LETTERS: Final = frozenset(string.ascii_letters)
_LOWER: Final = frozenset(string.ascii_lowercase)
_UPPER: Final = frozenset(string.ascii_uppercase)
_DIGITS: Final = frozenset(string.digits)
_MARKS: Final = frozenset("._-")
_NOTHING: Final[frozenset[str]] = frozenset()
_WORD: Final = _LETTERS | _DIGITS | {"_"}

ESCAPES: Final = {
    **{"d": _DIGITS, "D": ALPHABET - _DIGITS, "w": _WORD, "W": ALPHABET - _WORD},
    **{"s": _NOTHING, "S": ALPHABET, "h": _NOTHING, "H": ALPHABET, "v": _NOTHING, "V": ALPHABET},
}
"""Letter -> the characters that a backslash and this letter match. They match the same characters inside and outside of
a class."""

_NAMED: Final = {
    **{"Lower": _LOWER, "Upper": _UPPER, "Alpha": _LETTERS, "Digit": _DIGITS, "Alnum": _LETTERS | _DIGITS},
    **{"ASCII": ALPHABET, "Graph": ALPHABET, "Print": ALPHABET, "Punct": _MARKS, "XDigit": frozenset(string.hexdigits)},
    **{"Blank": _NOTHING, "Cntrl": _NOTHING, "Space": _NOTHING},
    **{"javaLowerCase": _LOWER, "javaUpperCase": _UPPER, "javaTitleCase": _NOTHING, "javaDigit": _DIGITS},
    **{"javaLetter": _LETTERS, "javaAlphabetic": _LETTERS, "javaLetterOrDigit": _LETTERS | _DIGITS},
    **{"javaWhitespace": _NOTHING, "javaSpaceChar": _NOTHING, "javaISOControl": _NOTHING, "javaDefined": ALPHABET},
    **{"IsAlphabetic": _LETTERS, "IsLetter": _LETTERS, "IsDigit": _DIGITS, "IsPunctuation": _MARKS},
    **{"IsLowercase": _LOWER, "IsUppercase": _UPPER, "IsWhite_Space": _NOTHING, "IsAssigned": ALPHABET},
    **{"IsLatin": _LETTERS, "IsCommon": _DIGITS | _MARKS, "InBasicLatin": ALPHABET, "InBasic_Latin": ALPHABET},
    **{"L1": ALPHABET, "LD": _LETTERS | _DIGITS, "LC": _LETTERS, "all": ALPHABET},
}
_CATEGORY: Final = re.compile(
    "(?:Is|gc=|general_category=)?(?P<category>C[cfnos]?|L[lmotu]?|M[cen]?|N[dlo]?|P[cdefios]?|S[ckmo]?|Z[lps]?)"
)


def property_class(name: str) -> frozenset[str] | None:
    """Returns the characters in ``\\p{name}``, or None if offsetmgr does not support the name. Java supports all
    property names of Unicode."""
    if name in _NAMED:
        return _NAMED[name]
    if found := _CATEGORY.fullmatch(name):
        return frozenset(one for one in ALPHABET if unicodedata.category(one).startswith(found["category"]))
    return None


def both_cases(characters: frozenset[str]) -> frozenset[str]:
    """Returns the characters, with each letter in lower case and in upper case."""
    return frozenset(other for one in characters for other in (one, one.lower(), one.upper()))
