r"""`compile_java`: translates a Java regular expression for topics to Python's syntax, or rejects it. Pure.

The regular expressions of Java and Python look alike but differ in details. Python gives ``[a-z&&[^b]]`` another
meaning, and accepts ``a{,3}``, which Java rejects. Python does not support ``\p{Alpha}`` and ``\Q``, and supports
``(?i)`` only at the start of a pattern. Therefore this module parses a pattern as Java does, and translates it to
syntax that has the same meaning in both languages. It writes character classes as lists of characters, which is
possible because topic names contain only 65 different characters. It rejects constructs whose meaning may differ.

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


# Removes ``\Q...\E`` quotation from Java's regular expressions, and writes character classes in Python's syntax.

NO_CHARACTER: Final = r"[^\s\S]"
"""A character class that matches no character."""


def strip_quotation(pattern: str) -> tuple[str, list[bool]]:
    """Returns the pattern without ``\\Q`` and ``\\E``, and for each remaining character whether it was quoted."""
    text, quoted = "", []
    at, inside = 0, False
    while at < len(pattern):
        pair = pattern[at : at + 2]
        if not inside and pair == "\\Q":
            inside, at = True, at + 2
        elif inside and pair == "\\E":
            inside, at = False, at + 2
        else:
            literal = pair if pair[0] == "\\" and not inside else pair[0]
            text += literal
            quoted += [inside] * len(literal)
            at += len(literal)
    return text, quoted


def python_class(characters: frozenset[str]) -> str:
    """Returns a Python pattern that matches one of these characters."""
    if not characters:
        return NO_CHARACTER
    if characters == ALPHABET:
        return "."
    return re.escape("".join(characters)) if len(characters) == 1 else f"[{re.escape(''.join(sorted(characters)))}]"


MAX_NESTING: Final = 50
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_ANCHORS: Final = {"b": r"\b", "B": r"\B", "A": r"\A", "G": r"\A", "z": r"\Z", "Z": r"\Z"}
_OPENINGS: Final = ("?:", "?=", "?!", "?>", "?<=", "?<!")
_IGNORED_FLAGS: Final = "dms"  # these flags affect line terminators, which topic names do not contain
_MIXED: Final = "an intersection with plain characters and classes mixed"
_MAX_COUNT: Final = 2**31 - 1
_DIGITS: Final = "0123456789"
_HEX: Final = "0123456789abcdefABCDEF"


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
    """A recursive-descent parser of one pattern. ``_at`` is the position of the next character. Quoted characters are
    always literals."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._text, self._quoted = strip_quotation(pattern)
        self._at = 0
        self._ignore_case = False
        self._depth = 0
        self._groups_opened = 0
        self._groups_closed: set[int] = set()
        self._group_names: dict[str, int] = {}

    def translate(self) -> str:
        translated = self._alternatives()
        if self._at < len(self._text):
            self._invalid("unmatched ')'")
        return translated

    # --- reading

    def _peek(self, ahead: int = 0) -> str:
        """Returns the next character; returns "" at the end of the pattern, or if the next character is quoted."""
        at = self._at + ahead
        return "" if at >= len(self._text) or self._quoted[at] else self._text[at]

    def _next(self) -> str:
        """Reads the next character. Raises `InvalidPattern` at the end, because the pattern is incomplete."""
        if self._at >= len(self._text):
            self._invalid("it is incomplete")
        self._at += 1
        return self._text[self._at - 1]

    def _accept(self, expected: str) -> bool:
        found = all(self._peek(ahead) == one for ahead, one in enumerate(expected))
        self._at += len(expected) if found else 0
        return found

    def _read_until(self, end: str, what: str) -> str:
        text = ""
        while not self._accept(end):
            if self._at >= len(self._text):
                self._invalid(f"{what} is not closed")
            text += self._next()
        return text

    def _read_while(self, allowed: str, max_length: int) -> str:
        text = ""
        while len(text) < max_length and self._peek() and self._peek() in allowed:
            text += self._next()
        return text

    # --- the grammar

    def _alternatives(self) -> str:
        branches = [self._sequence()]
        while self._accept("|"):
            branches.append(self._sequence())
        return "|".join(branches)

    def _sequence(self) -> str:
        parts: list[str] = []
        while self._at < len(self._text) and self._peek() not in ("|", ")"):
            atom, is_character = self._item()
            if atom:  # a group that only sets flags translates to nothing
                parts.append(atom + self._quantifier(is_character))
        return "".join(parts)

    def _item(self) -> tuple[str, bool]:
        """Translates an item that a quantifier can follow. Also returns whether the item matches one character."""
        match self._peek():
            case "(":
                return self._group(), False
            case "[":
                self._at += 1
                return python_class(self._character_class()), True
            case ".":
                self._at += 1
                return ".", True
            case "^" | "$" as anchor:
                self._at += 1
                return (r"(?:\A)" if anchor == "^" else r"(?:\Z)"), False
            case "*" | "+" | "?" | "{" as repetition:
                if repetition == "{" and self._peek(1) and self._peek(1) in _DIGITS:
                    self._unsupported("a quantifier without an item in front of it")
                return self._invalid(f"{repetition!r} follows no item that it could repeat")
            case "\\":
                self._at += 1
                return self._escape()
            case _:
                return python_class(self._with_case(self._next())), True

    def _quantifier(self, is_character: bool) -> str:
        minimum, written = 0, self._peek()
        if written and written in "*+?":
            self._at += 1
        elif written == "{":
            minimum, written = self._counted_quantifier()
        else:
            return ""
        if self._accept("?"):
            return f"{written}?"
        if self._accept("+"):
            if minimum > 1 and not is_character:  # in such a group, Java does not backtrack, but Python does
                self._unsupported("a possessive quantifier of a group with a minimum of 2 or more")
            return f"{written}+"
        return written

    def _counted_quantifier(self) -> tuple[int, str]:
        self._at += 1
        minimum = self._read_while(_DIGITS, 11)
        if not minimum:
            self._invalid("a '{' without a number")
        maximum = minimum
        if self._accept(","):
            maximum = self._read_while(_DIGITS, 11)
        if not self._accept("}"):
            self._invalid("a '{' is not closed")
        if int(minimum) > _MAX_COUNT or (maximum and not int(minimum) <= int(maximum) <= _MAX_COUNT):
            self._invalid("the numbers of a quantifier are out of range")
        return int(minimum), f"{{{int(minimum)},{int(maximum) if maximum else ''}}}"

    def _group(self) -> str:
        self._at += 1
        self._enter_nested("groups")
        enclosing = self._ignore_case
        opening, number = self._opening()
        if opening is None:  # flags such as (?i), which apply until the end of the enclosing group
            self._depth -= 1
            return ""
        inner = self._alternatives()
        if not self._accept(")"):
            self._invalid("a '(' is not closed")
        self._ignore_case = enclosing
        self._depth -= 1
        if number:
            self._groups_closed.add(number)
        return f"({opening}{inner})"

    def _opening(self) -> tuple[str | None, int]:
        """Returns the translated opening of a group, or None if the group only sets flags. Also returns the number of
        the group, or 0 if the group does not capture."""
        for opening in _OPENINGS:
            if self._accept(opening):
                return opening, 0
        if self._accept("?<"):
            self._add_group_name(self._read_until(">", "a group's name"))
        elif self._accept("?"):
            return self._flags(), 0
        self._groups_opened += 1
        return "", self._groups_opened

    def _add_group_name(self, name: str) -> None:
        if not re.fullmatch("[a-zA-Z][a-zA-Z0-9]*", name) or name in self._group_names:
            self._invalid(f"{name!r} is not a valid group name, or is used twice")
        self._group_names[name] = self._groups_opened + 1

    def _flags(self) -> str | None:
        switched_on = True
        while True:
            match self._next():
                case "-" if switched_on:
                    switched_on = False
                case "i":
                    self._ignore_case = switched_on
                case "x" | "u" | "U" as flag:
                    self._unsupported(f"the flag {flag}")
                case ":":
                    return "?:"
                case ")":
                    return None
                case other if other not in _IGNORED_FLAGS:
                    self._invalid(f"{other!r} is not a flag")

    # --- escapes

    def _escape(self) -> tuple[str, bool]:
        """Translates the item after a backslash, outside of a character class. Returns the same values as `_item`."""
        letter = self._peek()
        if letter and letter in _ANCHORS:
            self._at += 1
            if self._peek() == "{" and letter == "b":
                self._unsupported("\\b{...}")
            return f"(?:{_ANCHORS[letter]})", False
        if letter and letter in "123456789":
            number = int(self._next())
            while self._peek() and self._peek() in _DIGITS and number * 10 + int(self._peek()) <= self._groups_opened:
                number = number * 10 + int(self._next())
            return self._reference(number), False
        if self._accept("k<"):
            name = self._read_until(">", "a reference")
            if name not in self._group_names:
                self._invalid(f"no group is named {name!r}")
            return self._reference(self._group_names[name]), False
        if letter == "R":
            self._at += 1
            return NO_CHARACTER, False  # a line break
        if letter == "X":
            self._at += 1
            return ".", True  # a grapheme cluster, which in topic names is always one character
        return python_class(self._escaped_class()[0]), True

    def _reference(self, number: int) -> str:
        if number not in self._groups_closed:
            self._unsupported("a reference to a group that ends after it")
        if self._ignore_case:
            self._unsupported("a case-insensitive reference to a group")
        return f"(?:\\{number})"

    def _escaped_class(self) -> tuple[frozenset[str], str]:
        """Returns the characters that an escape matches. If the escape stands for a single character, also returns this
        character."""
        letter = self._next()
        if letter in ESCAPES:
            return ESCAPES[letter], ""
        if letter in ("p", "P"):
            return self._property(negated=letter == "P"), ""
        one = self._escaped_character(letter)
        return self._with_case(one), one

    def _property(self, *, negated: bool) -> frozenset[str]:
        name = self._read_until("}", "a property") if self._accept("{") else self._next()
        found = property_class(name)
        if found is None:
            self._unsupported(f"\\p{{{name}}}")
        if self._ignore_case and both_cases(found) != found:
            self._unsupported(f"\\p{{{name}}} with (?i)")
        return ALPHABET - found if negated else found

    def _escaped_character(self, letter: str) -> str:
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter == "c":
            self._reject_quoted()
            return chr(ord(self._next()) ^ 64)
        if letter == "0":
            digits = self._read_while("01234567", 2)
            return self._code_point(digits + (self._read_while("01234567", 1) if digits < "4" else ""), 8)
        if letter == "x":
            return self._code_point(self._read_until("}", "\\x{") if self._accept("{") else self._hex_digits(2), 16)
        if letter == "u":
            return self._code_point(self._hex_digits(4), 16)
        if letter == "N":
            self._unsupported("\\N{...}")
        if letter.isascii() and letter.isalpha():
            self._invalid(f"\\{letter} is not an escape")
        return letter

    def _hex_digits(self, count: int) -> str:
        written = self._read_while(_HEX, count)
        if len(written) < count:
            self._reject_quoted()
        return written if len(written) == count else ""

    def _reject_quoted(self) -> None:
        if self._at < len(self._text) and self._quoted[self._at]:
            self._unsupported("an escape that continues in a quotation")

    def _code_point(self, written: str, base: int) -> str:
        if not written or not set(written) <= set(_HEX) or int(written, base) > 0x10FFFF:
            self._invalid("an escape contains no valid character number")
        return chr(int(written, base))

    def _with_case(self, character: str) -> frozenset[str]:
        """Returns the character, and after ``(?i)`` also its other case. Returns an empty set if topic names cannot
        contain the character."""
        found = frozenset(character) & ALPHABET
        return both_cases(found) if self._ignore_case else found

    # --- character classes

    def _character_class(self) -> frozenset[str]:
        """Parses the rest of a class, from the character after ``[`` to ``]``."""
        self._enter_nested("classes")
        negated = self._accept("^")
        found, is_flat = self._operand()
        if negated and (not is_flat or self._peek() == "&"):
            self._unsupported("a negated class that contains another class, which Java 8 and 9 read differently")
        while self._accept("&&"):
            found &= self._right_operand()
        if not self._accept("]"):
            self._invalid("a '[' is not closed")
        self._depth -= 1
        return ALPHABET - found if negated else found

    def _right_operand(self) -> frozenset[str]:
        only_classes = self._peek() == "["
        found, is_flat = self._operand(only_classes=only_classes)
        if not is_flat and not only_classes:
            self._unsupported(_MIXED)
        return found

    def _operand(self, *, only_classes: bool = False) -> tuple[frozenset[str], bool]:
        """Parses one or more items, up to ``&&`` or ``]``. Also returns False if an item is a nested class."""
        found: frozenset[str] = frozenset()
        is_flat, empty = True, True
        while self._at < len(self._text) and (empty or self._peek() != "]"):
            if self._peek() == "&" and self._peek(1) == "&":
                if empty or self._peek(2) in ("&", "]"):
                    self._unsupported("an intersection without a class on one side")
                break
            if only_classes and self._peek() != "[":
                self._unsupported(_MIXED)
            if self._accept("["):
                found |= self._character_class()
                is_flat = False
            else:
                found |= self._range()
            empty = False
        return found, is_flat

    def _range(self) -> frozenset[str]:
        characters, low = self._class_item()
        if not low or self._peek() != "-" or self._peek(1) in ("[", "]"):
            return characters
        self._at += 1
        high = self._class_item()[1]
        if not high or high < low:
            self._invalid("the end of a range is a class, or precedes its start")
        found = frozenset(one for one in ALPHABET if low <= one <= high)
        return both_cases(found) if self._ignore_case else found

    def _class_item(self) -> tuple[frozenset[str], str]:
        if self._accept("\\"):
            return self._escaped_class()
        one = self._next()
        return self._with_case(one), one

    # --- errors --------------------------------------------------------------------------------------

    def _enter_nested(self, what: str) -> None:
        self._depth += 1
        if self._depth > MAX_NESTING:
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
