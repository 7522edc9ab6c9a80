"""An operation that Polymux has never seen: that of the tutorial, on every device."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from polymux.coexec import Session
from polymux.core.errors import InvalidRequest

FILE = Path(__file__).resolve().parents[2] / "examples" / "coexec" / "smooth.py"


@pytest.fixture(scope="module")
def smooth() -> Any:
    spec = importlib.util.spec_from_file_location("smooth", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reference(image: Any, taps: Any) -> Any:
    radius = len(taps) // 2
    padded = np.pad(image.astype(np.float64), radius, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, taps.shape)
    return np.einsum("xyij,ij->xy", windows, taps.astype(np.float64))


def test_it_is_short() -> None:
    assert len(FILE.read_text().splitlines()) < 100


@pytest.mark.parametrize("devices", [None, ["cpu:0"], ["simulated:0"], ["cpu:1", "simulated:0"]])
def test_it_computes_the_same_everywhere(session: Session, smooth: Any, devices: Any) -> None:
    generator = np.random.default_rng(3)
    image, taps = generator.random((130, 75), np.float32), generator.random((5, 5), np.float32)
    for _ in range(3):
        (result,) = session.run(smooth.Smooth(), image, taps, devices=devices)
        np.testing.assert_allclose(result, reference(image, taps), rtol=1e-4)


def test_its_own_checks_are_told(session: Session, smooth: Any) -> None:
    with pytest.raises(InvalidRequest, match="odd square window"):
        session.run(smooth.Smooth(), np.ones((5, 5), np.float32), np.ones((2, 2), np.float32))
