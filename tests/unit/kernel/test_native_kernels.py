"""Native kernels against calls that do not hold together: named refusals, and never a byte outside a buffer."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from polymux.core.dtype import DType
from polymux.core.implementation import NativeFunction
from polymux.kernel.builtin import definitions
from tests.unit.kernel.native_call import Given, call, given, library

BAD_ARGUMENT = 3
NATIVE = {
    definition.spec.name: definition.spec
    for definition in definitions()
    if any(isinstance(i, NativeFunction) for i in definition.implementations)
}


def test_the_library_tells_its_abi() -> None:
    assert library().polymux_kernel_library_abi() == 1


def test_every_native_kernel_of_the_table_is_in_the_library() -> None:
    for name in NATIVE:
        assert getattr(library(), f"polymux_kernel_{name}")


@pytest.mark.parametrize("name", [name for name in NATIVE if name != "noop"])
def test_a_caller_of_another_abi_is_refused(name: str) -> None:
    code, message = call(name, [np.zeros(4, "f4")] * 4, bytes(64), abi=2)
    assert code == BAD_ARGUMENT
    assert "ABI 2" in message


@pytest.mark.parametrize("name", [name for name in NATIVE if name != "noop"])
def test_missing_and_superfluous_buffers_are_named(name: str) -> None:
    spec = NATIVE[name]
    count = len(spec.inputs) + len(spec.outputs)
    code, message = call(name, [np.zeros(4, "f4")] * (count - 1), bytes(64))
    assert code == BAD_ARGUMENT
    assert f"{spec.outputs[-1].name} is missing: {count - 1} buffers were given" in message
    code, message = call(name, [np.zeros(4, "f4") for _ in range(count + 1)], bytes(64))
    assert code == BAD_ARGUMENT
    assert f"{count + 1} buffers were given, expected {count}" in message


@pytest.mark.parametrize("name", [name for name, spec in NATIVE.items() if spec.scalars])
def test_missing_scalars_are_named(name: str) -> None:
    spec = NATIVE[name]
    square = name in ("gaussian_step", "stencil", "hotspot_steps")
    params = (*spec.inputs, *spec.outputs)
    dtypes = [p.dtypes[0].name_short if len(p.dtypes) == 1 else "f4" for p in params]
    arrays = [np.zeros((4, 4) if square else (4,), dtype) for dtype in dtypes]
    for args in (b"", bytes(3)):
        code, message = call(name, arrays, args)
        assert code == BAD_ARGUMENT
        assert f"scalar {spec.scalars[0].name} is missing: {len(args)} bytes" in message


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"nbytes": 15}, r"x has shape (4,) of f4, but only 15 bytes"),
        ({"shape": (5,)}, r"x has shape (5,) of f4, but only 16 bytes"),
        ({"shape": (-1,)}, r"x has the impossible shape (-1,)"),
        ({"shape": (2**62, 2**62)}, r"x has the impossible shape"),
        ({"shape": (2**61,)}, r"x has the impossible shape"),
        ({"shape": (2**32, 2**32, 0)}, r"x has the impossible shape"),
        ({"dtype": 15}, r"x has the unknown dtype 15"),
        ({"dtype": -1}, r"x has the unknown dtype -1"),
        ({"ndim": 9}, r"x has 9 dimensions, expected 0 to 8"),
        ({"ndim": -1}, r"x has -1 dimensions"),
        ({"address": 0}, r"x is not aligned"),
        ({"address": 2}, r"x is not aligned to its elements of 4 bytes"),
    ],
)
def test_descriptions_that_cannot_be_are_refused(changes: dict[str, object], message: str) -> None:
    x, y = np.ones(4, "f4"), np.zeros(4, "f4")
    bad = given(x)
    for name, value in changes.items():
        setattr(bad, name, value)
    code, text = call("copy", [bad, y])
    assert code == BAD_ARGUMENT
    assert message in text
    assert (y == 0).all()


def test_a_message_is_cut_to_its_room() -> None:
    code, message = call("copy", [np.ones(4, "f4"), np.zeros(3, "f4")], message_nbytes=10)
    assert code == BAD_ARGUMENT
    assert message == "y has sha"
    assert call("copy", [np.ones(4, "f4"), np.zeros(3, "f4")], message_nbytes=0)[0] == BAD_ARGUMENT


@pytest.mark.parametrize("name", ["copy", "saxpy"])
def test_buffers_that_overlap_in_part_are_refused(name: str) -> None:
    memory = np.zeros(8, "f4")
    x, out = memory[:4], memory[2:6]
    buffers = [x, out] if name == "copy" else [x, np.zeros(4, "f4"), out]
    code, message = call(name, buffers, np.float64(1).tobytes())
    assert code == BAD_ARGUMENT
    assert "must not share memory with x" in message


@pytest.mark.parametrize("threads", [2, 3, 7])
def test_the_number_of_threads_does_not_change_a_bit(threads: int) -> None:
    random = np.random.default_rng(0)
    x, y = random.standard_normal(3_000_001), random.standard_normal(3_000_001)
    grid, power = x[:2_000_000].reshape(1000, 2000), y[:2_000_000].reshape(1000, 2000)
    f8 = np.float64
    sequence = np.array([5, 0, 3], "u8").tobytes() + f8(0).tobytes() + f8(1).tobytes()
    constants = np.array([0.1, 0.5, 1, 2, 3, 80]).tobytes()
    axis = np.array([0, 0], "i4").tobytes()
    tasks = [
        ("copy", [x], (x.shape,), b""),
        ("saxpy", [x, y], (x.shape,), f8(1.7).tobytes()),
        ("dot", [x, y], ((),), b""),
        ("reduce", [x], ((),), axis),
        ("reduce", [grid], ((2000,),), axis),
        ("transpose", [grid], ((2000, 1000),), b""),
        ("stencil", [grid, power], (grid.shape,), constants),
        ("gaussian_step", [grid[:, :1000].copy(), x[:1000]], ((1000, 1000), (1000,)), np.int64(0).tobytes()),
        ("random_uniform", [], (x.shape,), sequence),
        ("random_normal", [], (x.shape,), sequence),
        ("fill", [], (x.shape,), f8(0.5).tobytes()),
        (
            "particle_predict",
            [np.concatenate([x, y])[:2_000_000].reshape(4, -1).astype("f4"), np.ones((9, 9), "f4")],
            ((4, 500_000), (500_000,)),
            np.array([5, 0, 3], "u8").tobytes() + np.ones(4).tobytes(),
        ),
        ("particle_cumulate", [x.astype("f4"), np.ones(1, "f4")], (x.shape, (1,)), b""),
        (
            "particle_resample",
            [grid[:4].copy(), np.arange(1, 2001, dtype="u8")],
            ((4, 300_000),),
            np.array([7, 0, 0, 0, 0], "u8").tobytes(),
        ),
        (
            "pair_forces",
            [x[:96_000].reshape(2, 3, 4, 1000, 4)],
            ((2, 3, 4, 1000, 4),),
            np.int64(0).tobytes() + f8(0.5).tobytes(),
        ),
    ]
    for name, inputs, shapes, args in tasks:
        dtypes = [
            param.dtypes[0].to_numpy() if len(param.dtypes) == 1 else "f8" for param in NATIVE[name].outputs
        ]
        alone, together = (
            [np.full(shape, 7, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)] for _ in range(2)
        )
        assert call(name, [*inputs, *alone], args) == (0, "")
        assert call(name, [*inputs, *together], args, threads=threads) == (0, "")
        assert [a.tobytes() for a in alone] == [b.tobytes() for b in together], name


@pytest.mark.parametrize(
    ("value", "bits"),
    [
        (1.0, 0x3F80),
        (-0.0, 0x8000),
        (1.00390625, 0x3F80),
        (1.01171875, 0x3F82),
        (1e-40, 0x0001),
        (3.3e38, 0x7F78),
    ],
)
def test_fill_rounds_bfloat16_once(value: float, bits: int) -> None:
    y = np.zeros(3, np.uint16)
    buffer = given(y)
    buffer.dtype = int(DType.BF16)
    assert call("fill", [buffer], np.float64(value).tobytes()) == (0, "")
    assert (y == bits).all()


def test_no_call_reaches_outside_its_buffers() -> None:
    """Random calls on buffers whose last byte is the last before a page that cannot be touched."""
    script = Path(__file__).with_name("fuzz_native.py")
    done = subprocess.run(
        [sys.executable, str(script), "6000"], capture_output=True, text=True, check=False, timeout=110
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert "6000 calls" in done.stdout


def test_a_buffer_of_no_bytes_needs_no_address() -> None:
    nothing = Given(0, 0, int(DType.F32), (0, 3))
    assert call("copy", [nothing, nothing]) == (0, "")
