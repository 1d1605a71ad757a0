r"""`compile_java`: translates a Java regular expression for topics to Python's syntax, or rejects it. Pure.

The regular expressions of Java and Python look alike but differ in details. Python gives ``[a-z&&[^b]]`` another
meaning, and accepts ``a{,3}``, which Java rejects. Python does not support ``\p{Alpha}`` and ``\Q``, and supports
``(?i)`` only at the start of a pattern. Therefore this module parses a pattern as Java does, and translates it to
syntax that has the same meaning in both languages. It writes character classes as lists of characters, which is
possible because topic names contain only 65 different characters. It rejects constructs whose meaning may differ.
The package `regex` accepts constructs that Java rejects, so this module would have to parse a pattern for it, too.

Source: java.util.regex.Pattern of Java 8 to 21. This module rejects a pattern whose meaning differs between these
versions.
"""

from __future__ import annotations

import re
import string
import unicodedata
from typing import Final, NoReturn

from offsetmgr.core.errors import InvalidPattern, UnsupportedOperation

# Java's predefined character classes, restricted to the characters of topic names. Pure. Patterns are matched only
# against topic names, which consist of the 65 characters ``[a-zA-Z0-9._-]``. A class is therefore represented by the
# subset of these characters that it matches. Source: java.util.regex.Pattern's documentation.

ALPHABET: Final = frozenset(string.ascii_letters + string.digits + "._-")
"""The characters of topic names (kafka.common.Topic.legalChars)."""

_LETTERS: Final = frozenset(string.ascii_letters)
_LOWER: Final = frozenset(string.ascii_lowercase)
_UPPER: Final = frozenset(string.ascii_uppercase)
_DIGIT_CLASS: Final = frozenset(string.digits)
_MARKS: Final = frozenset("._-")
_NOTHING: Final[frozenset[str]] = frozenset()
_WORD: Final = _LETTERS | _DIGIT_CLASS | {"_"}

ESCAPES: Final = {
    **{"d": _DIGIT_CLASS, "D": ALPHABET - _DIGIT_CLASS, "w": _WORD, "W": ALPHABET - _WORD},
    **{"s": _NOTHING, "S": ALPHABET, "h": _NOTHING, "H": ALPHABET, "v": _NOTHING, "V": ALPHABET},
}
"""Letter -> the characters that a backslash and this letter match. They match the same characters inside and outside of
a class."""

_NAMED: Final = {
    **{"Lower": _LOWER, "Upper": _UPPER, "Alpha": _LETTERS, "Digit": _DIGIT_CLASS, "Alnum": _LETTERS | _DIGIT_CLASS},
    **{"ASCII": ALPHABET, "Graph": ALPHABET, "Print": ALPHABET, "Punct": _MARKS, "XDigit": frozenset(string.hexdigits)},
    **{"Blank": _NOTHING, "Cntrl": _NOTHING, "Space": _NOTHING},
    **{"javaLowerCase": _LOWER, "javaUpperCase": _UPPER, "javaTitleCase": _NOTHING, "javaDigit": _DIGIT_CLASS},
    **{"javaLetter": _LETTERS, "javaAlphabetic": _LETTERS, "javaLetterOrDigit": _LETTERS | _DIGIT_CLASS},
    **{"javaWhitespace": _NOTHING, "javaSpaceChar": _NOTHING, "javaISOControl": _NOTHING, "javaDefined": ALPHABET},
    **{"IsAlphabetic": _LETTERS, "IsLetter": _LETTERS, "IsDigit": _DIGIT_CLASS, "IsPunctuation": _MARKS},
    **{"IsLowercase": _LOWER, "IsUppercase": _UPPER, "IsWhite_Space": _NOTHING, "IsAssigned": ALPHABET},
    **{"IsLatin": _LETTERS, "IsCommon": _DIGIT_CLASS | _MARKS, "InBasicLatin": ALPHABET, "InBasic_Latin": ALPHABET},
    **{"L1": ALPHABET, "LD": _LETTERS | _DIGIT_CLASS, "LC": _LETTERS, "all": ALPHABET},
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


NO_CHARACTER: Final = r"[^\s\S]"
"""A character class that matches no character."""


def python_class(characters: frozenset[str]) -> str:
    """Returns a Python pattern that matches one of these characters."""
    if not characters:
        return NO_CHARACTER
    if characters == ALPHABET:
        return "."
    return re.escape("".join(characters)) if len(characters) == 1 else f"[{re.escape(''.join(sorted(characters)))}]"


_QUOTATION: Final = re.compile(r"\\Q(?P<quoted>.*?)(?:\\E|\Z)|\\.", re.DOTALL)


def without_quotation(pattern: str) -> str:
    r"""Returns the pattern with a backslash in front of quoted characters instead of ``\Q`` and ``\E``. As in Java, a
    quotation that begins with a digit does not continue an escape in front of it."""

    def escaped(found: re.Match[str]) -> str:
        text = found["quoted"]
        if text is None:
            return found[0]
        begin = "\\x3" if re.match("[0-9]", text) else ""
        return begin + "".join(one if one.isalnum() or not one.isascii() else f"\\{one}" for one in text)

    return _QUOTATION.sub(escaped, pattern)


MAX_NESTING: Final = 50
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_ANCHORS: Final = {"^": r"\A", "$": r"\Z", "b": r"\b", "B": r"\B", "A": r"\A", "G": r"\A", "z": r"\Z", "Z": r"\Z"}
_FLAGS: Final = "idms"  # d, m and s affect line terminators, which topic names do not contain
_MIXED: Final = "an intersection with plain characters and classes mixed"
_MAX_COUNT: Final = 2**31 - 1
_TOKEN: Final = re.compile(
    r"""
    (?P<repetition>(?:[*+?]|\{(?P<least>[0-9]{1,10})(?P<most>,[0-9]{0,10})?\})(?P<greed>[+?]?))
    | (?P<flags>\(\?(?P<letters>[a-zA-Z-]*)(?P<end>[:)]))
    | \((?P<group>\?[=!>]|\?<[=!]|\?<(?P<name>[a-zA-Z][a-zA-Z0-9]*)>|(?!\?))
    | (?P<close>\)) | (?P<branch>\|) | (?P<class>\[)
    | (?P<anchor>[$^]|\\[bBAGzZ])
    | \\(?P<number>[1-9][0-9]*)
    | \\k<(?P<reference>[^>]*)>
    | \\(?P<special>[RX])
    | (?P<escape>\\)
    | (?P<character>.)
    """,
    re.VERBOSE | re.DOTALL,
)
"""The next part of a pattern outside of a character class. The last group that matches is the kind of the part."""
_ESCAPE: Final = re.compile(
    r"""
    [pP](?:\{(?P<property>[^}]*)\}|(?P<category>[^{]))
    | x(?P<byte>[0-9a-fA-F]{2}) | u(?P<unit>[0-9a-fA-F]{4}) | x\{(?P<point>[0-9a-fA-F]+)\}
    | 0(?P<octal>[0-3]?[0-7]{1,2})
    | c(?P<control>.)
    | .
    """,
    re.VERBOSE | re.DOTALL,
)
"""The rest of an escape, after the backslash, inside or outside of a character class."""
_CHARACTER: Final = re.compile(".", re.DOTALL)


def compile_java(pattern: str) -> re.Pattern[str]:
    """Returns a Python pattern whose ``fullmatch`` accepts exactly the topic names that Java's
    ``name.matches(pattern)`` accepts.

    Raises `InvalidPattern` for a pattern that Java also rejects, and `UnsupportedOperation` for a construct that this
    module cannot translate.
    """
    translated = _Translator(pattern).translate()
    try:
        return re.compile(translated, re.ASCII | re.DOTALL)
    except (re.error, RecursionError, OverflowError) as error:
        raise UnsupportedOperation(f"topic pattern {pattern!r}", f"cannot be translated from Java: {error}") from error


class _Translator:
    """Translates the parts of one pattern one after the other. ``_at`` is the position of the next character."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._text = without_quotation(pattern)
        self._at = 0
        self._ignore_case = False
        self._repeats = ""
        """The item that a quantifier would repeat: ``character``, ``group`` for any other item, or an empty text."""
        self._open_groups: list[tuple[int, bool]] = []
        """The number of each open group, or 0 if it does not capture, and whether the case is ignored after it."""
        self._groups_opened = 0
        self._groups_closed: set[int] = set()
        self._group_names: dict[str, int] = {}
        self._class_depth = 0

    def translate(self) -> str:
        parts: list[str] = []
        while self._at < len(self._text):
            part, repeats = self._translated(self._read(_TOKEN))
            parts.append(part)
            self._repeats = repeats
        if self._open_groups:
            self._invalid("a '(' is not closed")
        return "".join(parts)

    def _read(self, token: re.Pattern[str]) -> re.Match[str]:
        """Reads the next token. Raises `InvalidPattern` at the end, because the pattern is incomplete."""
        found = token.match(self._text, self._at) or self._invalid("it is incomplete")
        self._at = found.end()
        return found

    def _accept(self, expected: str) -> bool:
        found = self._text.startswith(expected, self._at)
        self._at += len(expected) if found else 0
        return found

    def _translated(self, token: re.Match[str]) -> tuple[str, str]:
        """Returns the translation of a part, and the item that a quantifier after it would repeat."""
        match token.lastgroup:
            case "repetition":
                return self._repetition(token), ""
            case "flags":
                return self._with_flags(token), ""
            case "group":
                return self._group(token), ""
            case "close":
                return self._close(), "group"
            case "branch":
                return "|", ""
            case "class" | "escape":
                found = self._character_class() if token[0] == "[" else self._escape()[0]
                return python_class(found), "character"
            case "anchor":
                if token[0] == "\\b" and self._accept("{"):
                    self._unsupported("\\b{...}")
                return f"(?:{_ANCHORS[token[0][-1]]})", "group"
            case "number" | "reference":
                return self._reference(token), "group"
            case "special":  # a line break, or a grapheme cluster, which in topic names is always one character
                return (NO_CHARACTER, "group") if token["special"] == "R" else (".", "character")
            case _ if token[0] in "({":
                return self._invalid(f"{token[0]!r} begins no group and no quantifier")
            case _:
                return "." if token[0] == "." else python_class(self._with_case(token[0])), "character"

    def _repetition(self, token: re.Match[str]) -> str:
        least, most = token["least"], token["most"]
        if not self._repeats:
            if least:
                self._unsupported("a quantifier without an item in front of it")
            self._invalid(f"{token[0][0]!r} follows no item that it could repeat")
        if least and not int(least) <= int((most or "")[1:] or least) <= _MAX_COUNT:
            self._invalid("the numbers of a quantifier are out of range")
        if token["greed"] == "+" and int(least or 0) > 1 and self._repeats == "group":
            # in such a group, Java does not backtrack, but Python does
            self._unsupported("a possessive quantifier of a group with a minimum of 2 or more")
        return token[0]

    # --- groups

    def _open(self, number: int) -> None:
        self._open_groups.append((number, self._ignore_case))
        self._check_nesting("groups", len(self._open_groups))

    def _group(self, token: re.Match[str]) -> str:
        opening, name = token["group"], token["name"]
        if opening and not name:
            self._open(0)
            return f"({opening}"
        self._groups_opened += 1
        self._open(self._groups_opened)
        if name and self._group_names.setdefault(name, self._groups_opened) != self._groups_opened:
            self._invalid(f"the group name {name!r} is used twice")
        return "("

    def _with_flags(self, token: re.Match[str]) -> str:
        """Sets flags for a new group, or until the end of the enclosing group. Only ``i`` has an effect."""
        if token["end"] == ":":
            self._open(0)
        switched_on, _, switched_off = token["letters"].partition("-")
        for flag in switched_on + switched_off:
            if flag in "cuUx":
                self._unsupported(f"the flag {flag}")
            if flag not in _FLAGS:
                self._invalid(f"{flag!r} is not a flag")
        self._ignore_case = (self._ignore_case or "i" in switched_on) and "i" not in switched_off
        return "(?:" if token["end"] == ":" else ""

    def _close(self) -> str:
        if not self._open_groups:
            self._invalid("unmatched ')'")
        number, self._ignore_case = self._open_groups.pop()
        self._groups_closed |= {number}
        return ")"

    def _reference(self, token: re.Match[str]) -> str:
        if (digits := token["number"]) is None:
            if token["reference"] not in self._group_names:
                self._invalid(f"no group is named {token['reference']!r}")
            number = self._group_names[token["reference"]]
        else:  # as many digits as there are groups, and at least one
            size = sum(int(digits[:size]) <= self._groups_opened for size in range(1, len(digits) + 1)) or 1
            self._at = token.start("number") + size
            number = int(digits[:size])
        if number not in self._groups_closed:
            self._unsupported("a reference to a group that ends after it")
        if self._ignore_case:
            self._unsupported("a case-insensitive reference to a group")
        return f"(?:\\{number})"

    # --- characters

    def _escape(self) -> tuple[frozenset[str], str]:
        """Reads the rest of an escape. Returns the characters that it matches. If the escape stands for a single
        character, also returns this character."""
        found = self._read(_ESCAPE)
        letter, kind = found[0], found.lastgroup or ""
        if kind in ("property", "category"):
            return self._property(found[kind], negated=letter[0] == "P"), ""
        if letter in ESCAPES:
            return ESCAPES[letter], ""
        if kind == "control":
            one = chr(ord(found[kind]) ^ 64)
        elif kind:
            point = int(found[kind], 8 if kind == "octal" else 16)
            one = chr(point) if point <= 0x10FFFF else self._invalid("an escape contains no valid character number")
        elif letter == "N":
            self._unsupported("\\N{...}")
        elif letter in _CONTROLS or not (letter.isascii() and letter.isalnum()):
            one = _CONTROLS.get(letter, letter)
        else:
            self._invalid(f"\\{letter} is not an escape")
        return self._with_case(one), one

    def _property(self, name: str, *, negated: bool) -> frozenset[str]:
        found = property_class(name)
        if found is None:
            self._unsupported(f"\\p{{{name}}}")
        if self._ignore_case and both_cases(found) != found:
            self._unsupported(f"\\p{{{name}}} with (?i)")
        return ALPHABET - found if negated else found

    def _with_case(self, characters: str | frozenset[str]) -> frozenset[str]:
        """Returns those of the characters that topic names can contain, and after ``(?i)`` also their other case."""
        found = ALPHABET.intersection(characters)
        return both_cases(found) if self._ignore_case else found

    # --- character classes

    def _character_class(self) -> frozenset[str]:
        """Parses the rest of a class, from the character after ``[`` to ``]``."""
        self._class_depth += 1
        self._check_nesting("classes", self._class_depth)
        negated = self._accept("^")
        found, is_flat = self._operand()
        if negated and (not is_flat or self._text.startswith("&", self._at)):
            self._unsupported("a negated class that contains another class, which Java 8 and 9 read differently")
        while self._accept("&&"):
            only_classes = self._text.startswith("[", self._at)
            more, is_flat = self._operand(only_classes=only_classes)
            if not is_flat and not only_classes:
                self._unsupported(_MIXED)
            found &= more
        if not self._accept("]"):
            self._invalid("a '[' is not closed")
        self._class_depth -= 1
        return ALPHABET - found if negated else found

    def _operand(self, *, only_classes: bool = False) -> tuple[frozenset[str], bool]:
        """Parses one or more items, up to ``&&`` or ``]``. Also returns False if an item is a nested class."""
        found: frozenset[str] = frozenset()
        is_flat, empty = True, True
        while self._at < len(self._text) and (empty or self._text[self._at] != "]"):
            if self._text.startswith("&&", self._at):
                if empty or self._text.startswith(("&", "]"), self._at + 2):
                    self._unsupported("an intersection without a class on one side")
                break
            if self._accept("["):
                found |= self._character_class()
                is_flat = False
            elif only_classes:
                self._unsupported(_MIXED)
            else:
                found |= self._range()
            empty = False
        return found, is_flat

    def _range(self) -> frozenset[str]:
        characters, low = self._class_item()
        if not low or not self._text.startswith("-", self._at) or self._text.startswith(("[", "]"), self._at + 1):
            return characters
        self._at += 1
        high = self._class_item()[1]
        if not high or high < low:
            self._invalid("the end of a range is a class, or precedes its start")
        return self._with_case(frozenset(one for one in ALPHABET if low <= one <= high))

    def _class_item(self) -> tuple[frozenset[str], str]:
        if self._accept("\\"):
            return self._escape()
        one = self._read(_CHARACTER)[0]
        return self._with_case(one), one

    # --- errors --------------------------------------------------------------------------------------

    def _check_nesting(self, what: str, depth: int) -> None:
        if depth > MAX_NESTING:
            self._unsupported(f"{what} nested deeper than {MAX_NESTING}")

    def _invalid(self, why: str) -> NoReturn:
        hint = "a comma in a pattern means |, also between braces" if re.search(r"\{\d+\|", self._pattern) else ""
        raise InvalidPattern(f"topic pattern {self._pattern!r}", f"is not a regular expression of Java: {why}", hint)

    def _unsupported(self, what: str) -> NoReturn:
        raise UnsupportedOperation(
            f"topic pattern {self._pattern!r}",
            f"uses {what}, which offsetmgr cannot translate from Java reliably",
            "write an equivalent pattern without it",
        )
