from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polymux.device.expression import Expression


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3", 3),
        ("2 * a[0] * a[1] * b[1]", 2 * 3 * 4 * 5),
        ("(n + 1) // 2 - 0.5", 3.5),
        (" a[1] / 8 ", 0.5),
    ],
)
def test_it_computes_from_shapes_and_scalars(text: str, value: float) -> None:
    assert Expression(text).value({"a": (3, 4), "b": (4, 5), "n": 7}) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2 *",
        "a.size",
        "a[i]",
        "a[0:1]",
        "f(1)",
        "__import__('os')",
        "1 if n else 2",
        "n ** 9999999",
        "True",
        "'x'",
        "lambda: 1",
        "a[0][0]",
        "x := 1",
        "1; 2",
        "(" * 500 + "1" + ")" * 500,
        "1" + "+1" * 600,
    ],
)
def test_anything_else_is_refused_with_what_may_be_written(text: str) -> None:
    with pytest.raises(ValueError, match="write an expression of"):
        Expression(text)


@pytest.mark.parametrize(
    "text",
    ["missing", "a[2]", "a", "n[0]", "1 / (n - 7)", "0 - n", "n * 1e308 * 1e308", "n * 1e308 * 1e308 * 0"],
)
def test_a_value_that_cannot_be_computed_is_an_error_with_the_expression_and_what_was_given(
    text: str,
) -> None:
    with pytest.raises(
        ValueError, match=r"must be finite and not negative|cannot be computed from a=\(3, 4\), n=7"
    ):
        Expression(text).value({"a": (3, 4), "n": 7})


@given(st.text(alphabet="ab01[]()+-*/. ,n\n#", max_size=30))
def test_any_text_is_an_expression_or_refused(text: str) -> None:
    try:
        expression = Expression(text)
    except ValueError:
        return
    with contextlib.suppress(ValueError):
        assert expression.value({"a": (3, 4), "b": (1,), "n": 7}) >= 0
