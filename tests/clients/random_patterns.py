"""Random topic patterns: well-formed ones, character classes and random characters, with many constructs that Java and
Python interpret differently."""

from __future__ import annotations

from random import Random
from typing import Final


def _words(text: str) -> list[str]:
    return text.split()


TOPICS: Final = _words("""
    a b ab aab aaa abc A B Ab aB a.b a-b a_b a1 1 12 1.2 t-1 t-10 orders Orders orders.eu ORDERS-2 bills x xx xxx xy
    yx _ - aa bb aabb abab baba ba bab z9 Z0 a.b.c zzz azz aabbcc i I __consumer_offsets __transaction_state
""")
_ATOMS: Final = [
    " ",
    "\t",
    "\\N{LATIN SMALL LETTER A}",
    *_words(r"""
    a b A x 1 . - _ ^ $ { } ] {2} a{,3} , " ' é & [ab] [^a] [a-z] [A-Z0-9] [a-z&&[^b]] [a-z&&b-y] [ab[xy]] [^a[b]]
    [&&a] [a&&] [a&b] []a] [^]a] [a-] [-a] [a\-z] [\d-z] [a-\d] [z-a] [\w&&[^\d]] [a-z&&[def][x]] [a-z&&[ab]b]
    [a-c&&b-d&&c] [a-c&&[b-d]&&[c]] [^a-z&&b] [\Qa-c\E] [\Qa\E-c] \d \D \w \W \s \S \h \H \v \R \X \. \- \y \1 \2
    \p{Alpha} \p{Lower} \p{Upper} \P{Punct} \p{L} \pL \p{Lu} \p{IsLatin} \p{gc=Nd} \p{javaLowerCase} \p{InGreek}
    \p{IsPd} \p{Foo} \k<n> \x61 \x{62} \u0061 \0141 \061 \08 \x6 \t \cA \Qa.b\E \Qa \E \b \B \A \z \Z \G (?i) (?-i)
    (?s) (?x) (?u) (?U) (?q)
"""),
]
_REPETITIONS: Final = [
    *[""] * 5,
    *_words("""
    * + ? *? +? ?? *+ ++ ?+ {2} {1,2} {2,} {0,1}? {1,}+ {2,3}+ {2}{3} ** {2 {3,1} {a} {,2} *{2}
"""),
]
_OPENINGS: Final = _words("""
    ( ( (?: (?= (?! (?<= (?<! (?> (?i: (?-i: (?<n> (?<m1> (?P<n> (?s-i: (?#
""")
_CLASS_ITEMS: Final = _words(r"""
    a b z a-m A-Z 0-9 \d \w \W - ^ & && && [ ] \p{Lower} \- \Qb-d\E . \x61-\x66 \]
""")


def random_pattern(rng: Random) -> str:
    kind = rng.random()
    if kind < 0.25:
        return "".join(rng.choice("ab1.-_|()[]{}?*+^$\\&,:=!<>iQEdwpPLn ") for _ in range(rng.randint(1, 9)))
    if kind < 0.45:
        return rng.choice(["", "(?i)", "x"]) + _class(rng, 0) + rng.choice(["", "+", "*", ".*"])
    return "|".join(_sequence(rng, 0) for _ in range(rng.choice([1, 1, 2])))


def _sequence(rng: Random, depth: int) -> str:
    parts = []
    for _ in range(rng.choice([1, 1, 2, 2, 3])):
        atom = _group(rng, depth) if depth < 3 and rng.random() < 0.28 else rng.choice(_ATOMS)
        parts.append(atom + rng.choice(_REPETITIONS))
    if rng.random() < 0.02:
        parts.append(rng.choice([")", "|", "||", "(", "[", "\\"]))
    return "".join(parts)


def _group(rng: Random, depth: int) -> str:
    inner = "|".join(_sequence(rng, depth + 1) for _ in range(rng.choice([1, 1, 2, 3])))
    return rng.choice(_OPENINGS) + inner + (")" if rng.random() < 0.97 else "")


def _class(rng: Random, depth: int) -> str:
    items = [
        _class(rng, depth + 1) if depth < 3 and rng.random() < 0.2 else rng.choice(_CLASS_ITEMS)
        for _ in range(rng.randint(1, 5))
    ]
    return f"[{rng.choice(['', '', '^'])}{''.join(items)}]"
