from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from polymux.core.dtype import DType
from polymux.core.errors import ConfigError, InvalidRequest, KernelFailed
from polymux.core.kernel_spec import BufferParam
from polymux.inputs import make_stage

SOURCE = """
from polymux.kernel import BufferParam, kernel
from polymux.core.dtype import DType

@kernel("scale", inputs="data", outputs="y", dtypes=["u1", "f4"], scalars={"by": "f4", "up": "b1"})
def anything(data, y, by=1.0, up=False):
    pass

@kernel("gain", inputs=[BufferParam("data", (DType.U8,), (None,))], outputs=[BufferParam("y", (DType.F32,), (None,))],
        scalars={"by": "f4", "times": "i4"})
def gain(data, y, by, times=1):
    y[:] = 0
    y[: len(data)] = data * by * times

@kernel("two", inputs=[BufferParam("data", (DType.U8,), (None,))],
        outputs=[BufferParam("a", (), (4,)), BufferParam("b", (DType.I64,), ())])
def two(data, a, b):
    a[:2] = data[:2]
    b[...] = len(data)
    return [(2,), ()]

@kernel("team", inputs=[BufferParam("data", (DType.U8,), (None,))], outputs="y", parallel=True)
def team(data, y, team):
    pass

@kernel("fails", inputs=[BufferParam("data", (DType.U8,), (None,))], outputs="y")
def fails(data, y):
    raise RuntimeError("out of film")

@kernel("too_much", inputs=[BufferParam("data", (DType.U8,), (None,))], outputs="y")
def too_much(data, y):
    return [(1 << 40,)]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stages.py").write_text(SOURCE)
    return tmp_path


def wanted(
    shape: tuple[int | None, ...] | None = (1, 4), name: str = "x", dtype: DType = DType.F32
) -> list[BufferParam]:
    return [BufferParam(name, (dtype,), shape)]


DATA = [np.array([1, 2, 3], np.uint8)]


def test_a_kernel_of_a_file_makes_the_only_tensor_with_its_scalars_as_options(folder: Path) -> None:
    stage = make_stage("stages.py:gain,by=0.5,times=2", wanted(), folder)
    assert [array.tolist() for array in stage.run(DATA)] == [[[1, 2, 3, 0]]]


def test_outputs_are_the_tensors_of_the_same_names_and_may_be_smaller_than_their_room(folder: Path) -> None:
    targets = [*wanted((None,), "a"), *wanted((), "b", DType.I64), *wanted((3,), "c")]
    a, b = make_stage("stages.py:two", targets, folder).run(DATA)
    assert (a.tolist(), b.tolist()) == ([1, 2], 3)
    assert not a.flags.writeable


@pytest.mark.parametrize(
    ("text", "targets", "words"),
    [
        ("none.py:gain,by=1", wanted(), r"there is no file .*none\.py"),
        ("stages.py:lose", wanted(), "no kernel 'lose'; it has scale, gain, two"),
        ("stages.py:gain", wanted(), "needs by=f4"),
        ("stages.py:gain,by=much", wanted(), "by=much: give a value of type f4"),
        ("stages.py:gain,by=1,times=1.5", wanted(), "times=1.5"),
        ("stages.py:gain,by=1,times=99999999999", wanted(), "times"),
        ("stages.py:gain,by=1,loud=1", wanted(), "no option 'loud'; it has by, times"),
        ("stages.py:scale", wanted(), r"inputs \['data'\] .*one dtype each"),
        ("stages.py:team", wanted(), "without parallel=True"),
        ("stages.py:gain,by=1", wanted(dtype=DType.I8), "'x' is i1, the kernel makes .*f4"),
        ("stages.py:gain,by=1", wanted((None,)), r"'x' is \[-1\] and the kernel makes \[-1\]"),
        ("stages.py:gain,by=1", wanted((2, 4)), "have to agree"),
        ("stages.py:fails", wanted(None), "of any shape"),
        ("stages.py:two", wanted((4,), "a"), r"makes 'b', which is not wanted; wanted are \['a'\]"),
    ],
)
def test_a_stage_that_cannot_be_is_refused(
    folder: Path, text: str, targets: list[BufferParam], words: str
) -> None:
    with pytest.raises(InvalidRequest, match=words):
        make_stage(text, targets, folder)


def test_a_file_that_cannot_be_loaded_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "stages.py").write_text("\nimport nothing_of_that_name\n")
    with pytest.raises(ConfigError, match=r"stages\.py: line 2"):
        make_stage("stages.py:gain", wanted(), tmp_path)


def test_what_a_kernel_raises_is_the_failure_of_its_item(folder: Path) -> None:
    with pytest.raises(KernelFailed, match="RuntimeError: out of film"):
        make_stage("stages.py:fails", wanted(), folder).run(DATA)
    with pytest.raises(KernelFailed, match="room for"):
        make_stage("stages.py:too_much", wanted(), folder).run(DATA)


def test_the_identity_follows_content_and_scalars_not_the_place(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "copy.py").write_text(SOURCE)
    first = make_stage("stages.py:gain,by=1", wanted(), folder)
    assert first.identity == make_stage("copy.py:gain,by=1.0", wanted(name="z"), other).identity
    assert first.identity != make_stage("stages.py:gain,by=2", wanted(), folder).identity
    (folder / "stages.py").write_text(SOURCE + "\n")
    assert first.identity != make_stage("stages.py:gain,by=1", wanted(), folder).identity


@pytest.mark.parametrize("text", ["", ",a=1", "image,size", "image,=1", "image,size=", "image,size=1,size=2"])
def test_a_text_that_is_no_stage_is_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match="input stage"):
        make_stage(text, wanted((3, 8, 8)))


def test_an_unknown_stage_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(
        InvalidRequest, match=r"no stage is called 'sound'; there are image, tokenise.*FILE\.py"
    ):
        make_stage("sound", wanted())
