"""Translates Java's regular expressions for topics to Python's, or rejects them by name. Pure.

The two languages look alike and differ in subtle ways: Python silently gives ``[a-z&&[^b]]``, ``\\p{Alpha}`` or
``a{,3}`` another meaning, and has no ``\\Q`` and no ``(?i)`` in the middle. Therefore a pattern is parsed as Java
parses it, and written out in the small subset that both share. Character classes become explicit, since only the 65
characters of topic names are ever matched. A construct that might mean something else is rejected, never guessed.

Source: java.util.regex.Pattern (Java 8 to 21; a pattern on which these differ is rejected).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final, NoReturn

from offsetmgr.core.errors import InvalidPattern, UnsupportedOperation
from offsetmgr.zookeeper.groups.java_classes import ALPHABET, ESCAPES, both_cases, property_class
from offsetmgr.zookeeper.groups.java_quotation import _NOTHING_MATCHES, _class_text, _without_quotation

MOST_NESTED: Final = 50
_CONTROLS: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f", "a": "\a", "e": "\x1b"}
_ANCHORS: Final = {"b": r"\b", "B": r"\B", "A": r"\A", "G": r"\A", "z": r"\Z", "Z": r"\Z"}
_OPENINGS: Final = ("?:", "?=", "?!", "?>", "?<=", "?<!")
_HARMLESS_FLAGS: Final = "dms"  # they concern line terminators, which no topic's name has
_LARGEST_COUNT: Final = 2**31 - 1
_DIGITS: Final = "0123456789"
_HEX: Final = "0123456789abcdefABCDEF"


def compile_java(pattern: str) -> re.Pattern[str]:
    """Returns a Python pattern whose ``fullmatch`` accepts exactly the topic names that Java's
    ``name.matches(pattern)`` accepts.

    Raises `InvalidPattern` for patterns that Java rejects as well, `UnsupportedOperation` for constructs that only Java
    supports.
    """
    translated = _Translation(pattern).whole()
    try:
        return re.compile(translated, re.ASCII | re.DOTALL)
    except (re.error, RecursionError, OverflowError) as error:
        raise UnsupportedOperation(f"topic pattern {pattern!r}", f"cannot be translated from Java: {error}") from error


class _Translation:
    """One pass over a pattern. ``_at`` is the position; a quoted character (of ``\\Q..\\E``) is always literal."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._text, self._quoted = _without_quotation(pattern)
        self._at = 0
        self._any_case = False
        self._depth = 0
        self._opened = 0
        self._closed: set[int] = set()
        self._names: dict[str, int] = {}

    def whole(self) -> str:
        translated = self._alternatives()
        if self._at < len(self._text):
            self._invalid("a ')' closes nothing")
        return translated

    # --- reading

    def _peek(self, ahead: int = 0) -> str:
        """The character that is an operator if it is one; empty at the end, and for a quoted character."""
        at = self._at + ahead
        return "" if at >= len(self._text) or self._quoted[at] else self._text[at]

    def _next(self) -> str:
        """The next character. Raises at the end: the pattern is incomplete, which Java rejects."""
        if self._at >= len(self._text):
            self._invalid("it ends in the middle of something")
        self._at += 1
        return self._text[self._at - 1]

    def _takes(self, expected: str) -> bool:
        found = all(self._peek(ahead) == one for ahead, one in enumerate(expected))
        self._at += len(expected) if found else 0
        return found

    def _until(self, end: str, what: str) -> str:
        taken = ""
        while not self._takes(end):
            if self._at >= len(self._text):
                self._invalid(f"{what} is not closed")
            taken += self._next()
        return taken

    def _run_of(self, allowed: str, most: int) -> str:
        taken = ""
        while len(taken) < most and self._peek() and self._peek() in allowed:
            taken += self._next()
        return taken

    # --- the grammar

    def _alternatives(self) -> str:
        branches = [self._sequence()]
        while self._takes("|"):
            branches.append(self._sequence())
        return "|".join(branches)

    def _sequence(self) -> str:
        parts: list[str] = []
        while self._at < len(self._text) and self._peek() not in ("|", ")"):
            atom, is_character = self._atom()
            if atom:  # a group that only sets flags is empty
                parts.append(atom + self._quantifier(is_character))
        return "".join(parts)

    def _atom(self) -> tuple[str, bool]:
        """A repeatable item, and whether it is one character wide."""
        match self._peek():
            case "(":
                return self._group(), False
            case "[":
                self._at += 1
                return _class_text(self._class()), True
            case ".":
                self._at += 1
                return ".", True
            case "^" | "$" as anchor:
                self._at += 1
                return (r"(?:\A)" if anchor == "^" else r"(?:\Z)"), False
            case "*" | "+" | "?" | "{" as repetition:
                if repetition == "{" and self._peek(1) and self._peek(1) in _DIGITS:
                    self._unsupported("a repetition of nothing, or of a repetition")
                return self._invalid(f"{repetition!r} repeats nothing")
            case "\\":
                self._at += 1
                return self._escape()
            case _:
                return _class_text(self._cased(self._next())), True

    def _quantifier(self, is_character: bool) -> str:
        least, written = 0, self._peek()
        if written and written in "*+?":
            self._at += 1
        elif written == "{":
            least, written = self._counted()
        else:
            return ""
        if self._takes("?"):
            return f"{written}?"
        if self._takes("+"):
            if least > 1 and not is_character:  # Java does not try a shorter first round then, Python does
                self._unsupported("a possessive repetition of a group, counted from 2 or more")
            return f"{written}+"
        return written

    def _counted(self) -> tuple[int, str]:
        self._at += 1
        least = self._run_of(_DIGITS, 11)
        if not least:
            self._invalid("a '{' without a number")
        most = least
        if self._takes(","):
            most = self._run_of(_DIGITS, 11)
        if not self._takes("}"):
            self._invalid("a '{' is not closed")
        if int(least) > _LARGEST_COUNT or (most and not int(least) <= int(most) <= _LARGEST_COUNT):
            self._invalid("the numbers of a repetition are out of range")
        return int(least), f"{{{int(least)},{int(most) if most else ''}}}"

    def _group(self) -> str:
        self._at += 1
        self._deeper("groups")
        outside = self._any_case
        opening, number = self._opening()
        if opening is None:  # (?i): to the end of the group around it
            self._depth -= 1
            return ""
        inner = self._alternatives()
        if not self._takes(")"):
            self._invalid("a '(' is not closed")
        self._any_case = outside
        self._depth -= 1
        if number:
            self._closed.add(number)
        return f"({opening}{inner})"

    def _opening(self) -> tuple[str | None, int]:
        """The Python form of a group's opening, and the group's number (0 for none). None for flags without a group."""
        for opening in _OPENINGS:
            if self._takes(opening):
                return opening, 0
        if self._takes("?<"):
            self._named(self._until(">", "a group's name"))
        elif self._takes("?"):
            return self._flags(), 0
        self._opened += 1
        return "", self._opened

    def _named(self, name: str) -> None:
        if not re.fullmatch("[a-zA-Z][a-zA-Z0-9]*", name) or name in self._names:
            self._invalid(f"{name!r} cannot be a group's name, or is one already")
        self._names[name] = self._opened + 1

    def _flags(self) -> str | None:
        switched_on = True
        while True:
            match self._next():
                case "-" if switched_on:
                    switched_on = False
                case "i":
                    self._any_case = switched_on
                case "x" | "u" | "U" as flag:
                    self._unsupported(f"the flag {flag}")
                case ":":
                    return "?:"
                case ")":
                    return None
                case other if other not in _HARMLESS_FLAGS:
                    self._invalid(f"{other!r} is no flag")

    # --- escapes

    def _escape(self) -> tuple[str, bool]:
        """The item after a backslash, outside a character class."""
        letter = self._peek()
        if letter and letter in _ANCHORS:
            self._at += 1
            if self._peek() == "{" and letter == "b":
                self._unsupported("\\b{...}")
            return f"(?:{_ANCHORS[letter]})", False
        if letter and letter in "123456789":
            return self._back_reference(), False
        if self._takes("k<"):
            name = self._until(">", "a reference")
            if name not in self._names:
                self._invalid(f"no group is named {name!r}")
            return self._reference(self._names[name]), False
        if letter == "R":
            self._at += 1
            return _NOTHING_MATCHES, False  # a line break
        if letter == "X":
            self._at += 1
            return ".", True  # a character with what is combined with it
        return _class_text(self._escaped_class()[0]), True

    def _back_reference(self) -> str:
        number = int(self._next())
        while self._peek() and self._peek() in _DIGITS and number * 10 + int(self._peek()) <= self._opened:
            number = number * 10 + int(self._next())
        return self._reference(number)

    def _reference(self, number: int) -> str:
        if number not in self._closed:
            self._unsupported("a reference to a group that is not complete there")
        if self._any_case:
            self._unsupported("a reference to a group without regard to case")
        return f"(?:\\{number})"

    def _escaped_class(self) -> tuple[frozenset[str], str]:
        """The characters that an escape matches, and the one character if it matches only one."""
        letter = self._next()
        if letter in ESCAPES:
            return ESCAPES[letter], ""
        if letter in ("p", "P"):
            return self._property(negated=letter == "P"), ""
        one = self._escaped_character(letter)
        return self._cased(one), one

    def _property(self, *, negated: bool) -> frozenset[str]:
        name = self._until("}", "a property") if self._takes("{") else self._next()
        found = property_class(name)
        if found is None:
            self._unsupported(f"\\p{{{name}}}")
        if self._any_case and both_cases(found) != found:
            self._unsupported(f"\\p{{{name}}} without regard to case")
        return ALPHABET - found if negated else found

    def _escaped_character(self, letter: str) -> str:
        if letter in _CONTROLS:
            return _CONTROLS[letter]
        if letter == "c":
            self._before_quotation()
            return chr(ord(self._next()) ^ 64)
        if letter == "0":
            digits = self._run_of("01234567", 2)
            return self._numbered(digits + (self._run_of("01234567", 1) if digits < "4" else ""), 8)
        if letter == "x":
            return self._numbered(self._until("}", "\\x{") if self._takes("{") else self._exactly(2), 16)
        if letter == "u":
            return self._numbered(self._exactly(4), 16)
        if letter == "N":
            self._unsupported("\\N{...}")
        if letter.isascii() and letter.isalpha():
            self._invalid(f"\\{letter} means nothing")
        return letter

    def _exactly(self, count: int) -> str:
        written = self._run_of(_HEX, count)
        if len(written) < count:
            self._before_quotation()
        return written if len(written) == count else ""

    def _before_quotation(self) -> None:
        if self._at < len(self._text) and self._quoted[self._at]:
            self._unsupported("an escape that runs into a quotation")

    def _numbered(self, written: str, base: int) -> str:
        if not written or not set(written) <= set(_HEX) or int(written, base) > 0x10FFFF:
            self._invalid("an escape gives no character's number")
        return chr(int(written, base))

    def _cased(self, character: str) -> frozenset[str]:
        """The character, if topic names can contain it; in both cases after ``(?i)``."""
        found = frozenset(character) & ALPHABET
        return both_cases(found) if self._any_case else found

    # --- character classes

    def _class(self) -> frozenset[str]:
        """Parses from after the ``[`` to after the ``]``."""
        self._deeper("classes")
        negated = self._takes("^")
        found, plain = self._operand()
        if negated and (not plain or self._peek() == "&"):
            self._unsupported("a negated class with another inside, which Java 8 and 9 read differently")
        while self._takes("&&"):
            found &= self._right_operand()
        if not self._takes("]"):
            self._invalid("a '[' is not closed")
        self._depth -= 1
        return ALPHABET - found if negated else found

    def _right_operand(self) -> frozenset[str]:
        if self._peek() == "[":
            return self._operand(self._only_classes)[0]
        found, plain = self._operand()
        if not plain:
            self._unsupported("an intersection with plain characters and classes mixed")
        return found

    def _only_classes(self) -> None:
        if self._peek() != "[":
            self._unsupported("an intersection with plain characters and classes mixed")

    def _operand(self, check: Callable[[], None] | None = None) -> tuple[frozenset[str], bool]:
        """The part between ``[``, ``&&`` and ``]``, and whether it contains no nested class. At least one item."""
        found: frozenset[str] = frozenset()
        plain, empty = True, True
        while self._at < len(self._text) and (empty or self._peek() != "]"):
            if self._peek() == "&" and self._peek(1) == "&":
                if empty or self._peek(2) in ("&", "]"):
                    self._unsupported("an intersection without both its sides")
                break
            if check is not None:
                check()
            if self._takes("["):
                found |= self._class()
                plain = False
            else:
                found |= self._range()
            empty = False
        return found, plain

    def _range(self) -> frozenset[str]:
        characters, low = self._class_item()
        if not low or self._peek() != "-" or self._peek(1) in ("[", "]"):
            return characters
        self._at += 1
        high = self._class_item()[1]
        if not high or high < low:
            self._invalid("a range of characters goes backwards, or to a class")
        found = frozenset(one for one in ALPHABET if low <= one <= high)
        return both_cases(found) if self._any_case else found

    def _class_item(self) -> tuple[frozenset[str], str]:
        if self._takes("\\"):
            return self._escaped_class()
        one = self._next()
        return self._cased(one), one

    # --- errors --------------------------------------------------------------------------------------

    def _deeper(self, what: str) -> None:
        self._depth += 1
        if self._depth > MOST_NESTED:
            self._unsupported(f"{what} nested deeper than {MOST_NESTED}")

    def _invalid(self, why: str) -> NoReturn:
        hint = "a comma in a pattern means or, between braces too" if re.search(r"\{\d+\|", self._pattern) else ""
        raise InvalidPattern(f"topic pattern {self._pattern!r}", f"is no regular expression of Java: {why}", hint)

    def _unsupported(self, what: str) -> NoReturn:
        raise UnsupportedOperation(
            f"topic pattern {self._pattern!r}",
            f"uses {what}, which is not known to mean the same here as in Java",
            "write the pattern without it",
        )
