"""Convolution on all devices together is what the sums of its definition say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from polymux import conv2d
from polymux.coexec import Session
from polymux.core.errors import InvalidRequest


def random(*shape: int, dtype: Any = np.float32, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def reference(x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:
    """Sum over taps, in double precision."""
    (n, c, h, w), (o, _, kh, kw) = x.shape, weight.shape
    padded = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    p = (h + 2 * padding[0] - dilation[0] * (kh - 1) - 1) // stride[0] + 1
    q = (w + 2 * padding[1] - dilation[1] * (kw - 1) - 1) // stride[1] + 1
    y = np.zeros((n, groups, o // groups, p, q))
    filters = weight.reshape(groups, o // groups, c // groups, kh, kw).astype(np.float64)
    for i in range(kh):
        for j in range(kw):
            top, left = i * dilation[0], j * dilation[1]
            part = padded[:, :, top : top + (p - 1) * stride[0] + 1 : stride[0]]
            part = part[..., left : left + (q - 1) * stride[1] + 1 : stride[1]]
            part = part.reshape(n, groups, c // groups, p, q)
            y += np.einsum("ngchw,goc->ngohw", part, filters[..., i, j])
    return y.reshape(n, o, p, q)


@given(
    st.integers(1, 5),
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 4),
    st.tuples(st.integers(5, 14), st.integers(5, 14)),
    st.tuples(st.integers(1, 3), st.integers(1, 3)),
    st.tuples(st.integers(1, 2), st.integers(1, 3)),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
)
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_layers_agree_with_the_definition(
    session: Session,
    n: int,
    groups: int,
    c: int,
    o: int,
    size: Any,
    kernel: Any,
    stride: Any,
    padding: Any,
    dilation: Any,
) -> None:
    x, weight = random(n, groups * c, *size), random(groups * o, c, *kernel, seed=1)
    y = conv2d(x, weight, stride=stride, padding=padding, dilation=dilation, groups=groups, session=session)
    exact = reference(x, weight, stride, padding, dilation, groups)
    assert y.shape == exact.shape
    np.testing.assert_allclose(y, exact, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("images", [1, 7])
def test_a_layer_is_split_by_images_or_by_channels_and_right(
    session: Session, images: int, dtype: Any
) -> None:
    x, weight = random(images, 32, 28, 28, dtype=dtype), random(64, 32, 3, 3, dtype=dtype)
    for _ in range(3):
        y = conv2d(x, weight, padding=1, session=session)
        assert y.dtype == dtype
        np.testing.assert_allclose(y, reference(x, weight, (1, 1), (1, 1), (1, 1), 1), rtol=1e-3, atol=2e-3)


def test_bias_out_strides_and_infinities(session: Session) -> None:
    x, weight, bias = random(3, 4, 9, 9)[:, ::-1, ::-1], random(6, 4, 3, 3), random(6)
    out = np.empty((3, 6, 7, 7), np.float32)
    assert conv2d(x, weight, bias, out=out, session=session) is out
    exact = reference(x, weight, (1, 1), (0, 0), (1, 1), 1) + bias[:, None, None]
    np.testing.assert_allclose(out, exact, rtol=1e-3, atol=1e-4)
    x = random(1, 2, 6, 6)
    x[0, 0, 2, 2], x[0, 1, 5, 5] = np.nan, np.inf
    y = conv2d(x, np.abs(random(3, 2, 3, 3)), session=session)
    assert np.isnan(y[0, :, :3, :3]).all()
    assert np.isinf(y[0, :, 3, 3]).all()


def test_no_images(session: Session) -> None:
    assert conv2d(np.ones((0, 2, 5, 5), np.float32), random(3, 2, 3, 3), session=session).shape == (
        0,
        3,
        3,
        3,
    )


@pytest.mark.parametrize(
    ("x", "weight", "options", "said"),
    [
        ((4, 5), (1, 1, 1, 1), {}, r"\(4, 5\)"),
        ((1, 3, 5, 5), (4, 2, 3, 3), {}, "need 3/1 channels"),
        ((1, 4, 5, 5), (3, 2, 3, 3), {"groups": 2}, "multiples of the groups"),
        ((1, 1, 3, 3), (1, 1, 5, 5), {}, "reach over 5 elements do not fit"),
        ((1, 1, 3, 3), (1, 1, 2, 2), {"stride": 0}, "stride 0"),
        ((1, 1, 3, 3), (1, 1, 2, 2), {"padding": -1}, "padding -1"),
        ((1, 1, 3, 3), (1, 1, 2, 2), {"dilation": (1, 2, 3)}, "dilation="),
        ((1, 1, 3, 3), (1, 1, 2, 2), {"bias": np.ones(3)}, "bias of shape"),
    ],
)
def test_what_does_not_fit_is_named(session: Session, x: Any, weight: Any, options: Any, said: str) -> None:
    with pytest.raises(InvalidRequest, match=said):
        conv2d(np.ones(x, np.float32), np.ones(weight, np.float32), session=session, **options)


def test_integers_are_refused(session: Session) -> None:
    with pytest.raises(InvalidRequest, match="give float32 or float64"):
        conv2d(np.ones((1, 1, 3, 3), np.int32), np.ones((1, 1, 2, 2), np.int32), session=session)
