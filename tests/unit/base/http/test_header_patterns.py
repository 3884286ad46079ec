"""Patterns of header names: RE2's syntax, case ignored unless the pattern says otherwise."""

import pytest

from conch.base.http.header_patterns import compile_pattern


@pytest.mark.parametrize(
    ("pattern", "matching", "not_found"),
    [
        ("x-my-.*", ["x-my-a", "X-MY-A", "more-x-my-"], ["x-you"]),
        ("^x-my$", ["X-My"], ["x-my-", "ax-my"]),
        ("(?-i)x-my", ["x-my"], ["X-My", "x-mY"]),
        ("(?-i)X-A|x-b", ["X-A", "x-b"], ["x-a", "X-B"]),
        ("x-(?-i)A", ["x-A", "X-A"], ["x-a"]),
        ("(?-i:X)-a", ["X-a", "X-A"], ["x-a"]),
        ("a(b(?-i)c)d", ["AbcD", "aBcd"], ["abCd"]),
        ("(?i)(?-i)x", ["x"], ["X"]),
        (r"\Qa.b\E+", ["a.b", "A.B"], ["axb"]),
        (r"^[[:alpha:]-]+\z", ["a-B"], ["a1"]),
        ("^[^[:digit:]]+$", ["ab"], ["a1"]),
        (r"^\d$", ["7"], ["\u0667"]),
        ("(?P<one>a)(?<two>b)", ["AB"], ["a"]),
        ("[a[]b", ["[b"], ["cb"]),
    ],
)
def test_what_is_found(pattern, matching, not_found):
    compiled = compile_pattern(pattern)
    assert [name for name in matching if not compiled.search(name)] == []
    assert [name for name in not_found if compiled.search(name)] == []


@pytest.mark.parametrize(
    "pattern",
    ["(?=a)", "(?!a)", "(?<=a)b", "(?<!a)b", r"(a)\1", "(?>a)", "a++", r"\pL", "(?U)a", "x(?-i)a|b", "(", "[a", "*a"],
)
def test_what_is_refused(pattern):
    with pytest.raises(ValueError, match=r"\w"):
        compile_pattern(pattern)
