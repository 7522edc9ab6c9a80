"""Arithmetic on shapes and scalars, written as text: ``"2 * a[0] * a[1] * b[1]"``."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence

Value = int | float | Sequence[int]

_OPERATORS: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
_REMEDY = "write an expression of numbers, scalars, extents such as a[0], and + - * / // ( )"
_MAX_LENGTH = 1000


class Expression:
    """A checked expression.

    Parameters
    ----------
    text : str
        Numbers, names of scalars, extents of buffers (``a[0]``), ``+ - * / //`` and parentheses.

    Raises
    ------
    ValueError
        For anything else.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        if len(text) > _MAX_LENGTH:
            raise ValueError(f"{_REMEDY}; this one is longer than {_MAX_LENGTH} characters")
        try:
            self._root = ast.parse(text.strip(), mode="eval").body
            _check(self._root)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise ValueError(_REMEDY) from error

    def value(self, values: Mapping[str, Value]) -> float:
        """Compute it.

        Parameters
        ----------
        values : mapping
            Shapes and numbers by name.

        Raises
        ------
        ValueError
            If a name or extent is missing, or the result is negative or not finite.
        """
        try:
            result = _evaluate(self._root, values)
        except (KeyError, IndexError, TypeError, ArithmeticError) as error:
            given = ", ".join(f"{name}={value}" for name, value in values.items())
            reason = f"{type(error).__name__}: {error}"
            raise ValueError(
                f"{self.text!r} cannot be computed from {given or 'nothing'} ({reason})"
            ) from error
        if not 0 <= result < math.inf:
            raise ValueError(f"{self.text!r} is {result}; it must be finite and not negative")
        return result

    def __repr__(self) -> str:
        return f"Expression({self.text!r})"


def _check(node: ast.expr) -> None:
    match node:
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            return
        case ast.Name():
            return
        case ast.Subscript(value=ast.Name(), slice=ast.Constant(value=int())):
            return
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS:
            _check(left)
            _check(right)
        case _:
            raise ValueError("not allowed here")


def _evaluate(node: ast.expr, values: Mapping[str, Value]) -> float:
    match node:
        case ast.Constant(value=int() | float() as value):
            return value
        case ast.Name(id=name):
            number = values[name]
            if isinstance(number, (int, float)):
                return number
            raise TypeError(f"{name} is a buffer; write an extent such as {name}[0]")
        case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=int() as index)):
            shape = values[name]
            if isinstance(shape, (int, float)):
                raise TypeError(f"{name} is a scalar and has no extents")
            return shape[index]
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_evaluate(left, values), _evaluate(right, values))
    raise AssertionError("an unchecked expression")
