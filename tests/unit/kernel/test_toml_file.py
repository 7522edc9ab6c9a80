from __future__ import annotations

from pathlib import Path

import pytest

from polymux.core.dtype import DType
from polymux.core.errors import ConfigError, InvalidRequest
from polymux.core.implementation import NativeFunction, OnnxModel, OpenCLBinary, OpenCLSource
from polymux.core.kernel_spec import BufferParam, KernelSpec, ScalarParam
from polymux.core.opencl_range import OpenCLRange
from polymux.kernel.toml_file import read_toml_file

FULL = """
[[kernel]]
name = "scale"
doc = "y = a * x."
idempotent = true
inputs = [{ name = "x", dtypes = ["f4", "float64"], shape = [-1, 3] }]
outputs = ["y"]
scalars = [{ name = "a", dtype = "f4", default = 2 }, { name = "on", dtype = "b1", default = true }]

[kernel.native]
library = "libscale.so"
symbol = "scale_it"
threads = true

[kernel.opencl]
source = "scale.cl"
entry = "scale"
global_size = ["y.shape[1]", 4]
local_size = [64, 1]
arguments = ["y.size", "a", 7]
options = "-cl-mad-enable"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("libscale.so", "set.bin", "model.onnx"):
        (tmp_path / name).write_bytes(b"")
    (tmp_path / "scale.cl").write_text("__kernel void scale() {}")
    return tmp_path


def written(folder: Path, text: str) -> Path:
    file = folder / "kernels.toml"
    file.write_text(text)
    return file


def test_a_kernel_is_read_with_all_that_it_can_have(folder: Path) -> None:
    (definition,) = read_toml_file(written(folder, FULL))
    assert definition.spec == KernelSpec(
        "scale",
        inputs=(BufferParam("x", (DType.F32, DType.F64), (None, 3)),),
        outputs=(BufferParam("y"),),
        scalars=(ScalarParam("a", DType.F32, 2), ScalarParam("on", DType.BOOL, True)),
        idempotent=True,
        doc="y = a * x.",
    )
    native, opencl = definition.implementations
    assert native == NativeFunction(str(folder / "libscale.so"), "scale_it", threads=True)
    plan = OpenCLRange("scale", ("y.shape[1]", 4), (64, 1), ("y.size", "a", 7))
    assert opencl == OpenCLSource("__kernel void scale() {}", plan, "-cl-mad-enable")


def test_symbol_and_entry_are_the_kernels_name_by_default(folder: Path) -> None:
    text = """
    [[kernel]]
    name = "scale"
    native = { library = "libscale.so" }
    opencl = { source = "scale.cl", global_size = [1] }
    """
    (definition,) = read_toml_file(written(folder, text))
    native, opencl = definition.implementations
    assert isinstance(native, NativeFunction)
    assert native.symbol == "scale"
    assert isinstance(opencl, OpenCLSource)
    assert opencl.plan == OpenCLRange("scale", (1,))


def test_kernels_of_one_binary_know_all_its_entries(folder: Path) -> None:
    text = "\n".join(
        f'[[kernel]]\nname = "{name}"\ninputs = ["x"]\nopencl = {{ binary = "set.bin", global_size = ["x.size"] }}'
        for name in ("one", "two", "three")
    )
    for definition in read_toml_file(written(folder, text)):
        (binary,) = definition.implementations
        assert isinstance(binary, OpenCLBinary)
        assert binary.entries == ("one", "two", "three")
        assert binary.path == str(folder / "set.bin")
        assert isinstance(binary.plan, OpenCLRange)
        assert binary.plan.entry == definition.spec.name


def test_a_models_spec_is_asked_for(folder: Path) -> None:
    text = (
        '[[kernel]]\nname = "classify"\ndoc = "d"\nonnx = { model = "model.onnx", options = { a = "b" } }\n'
    )
    asked: list[tuple[str, str, str]] = []

    def model_spec(path: str, name: str, doc: str) -> KernelSpec:
        asked.append((path, name, doc))
        return KernelSpec(name, inputs=(BufferParam("image"),))

    (definition,) = read_toml_file(written(folder, text), model_spec=model_spec)
    assert asked == [(str(folder / "model.onnx"), "classify", "d")]
    assert definition.spec.inputs == (BufferParam("image"),)
    assert definition.implementations == (OnnxModel(str(folder / "model.onnx"), (("a", "b"),)),)
    with pytest.raises(ConfigError, match=r"kernel\[0\]\.inputs = None: give the inputs and outputs"):
        read_toml_file(written(folder, text))


def test_a_model_that_cannot_be_read_is_named(folder: Path) -> None:
    def broken(path: str, name: str, doc: str) -> KernelSpec:
        raise InvalidRequest("it is no model")

    text = '[[kernel]]\nname = "classify"\nonnx = { model = "model.onnx" }\n'
    with pytest.raises(ConfigError, match=r"kernel\[0\]\.onnx\.model = .*model\.onnx': it is no model"):
        read_toml_file(written(folder, text), model_spec=broken)


def test_native_libraries_are_checked_when_somebody_can(folder: Path) -> None:
    checked: list[NativeFunction] = []
    read_toml_file(written(folder, FULL), check_native=checked.append)
    assert checked == [NativeFunction(str(folder / "libscale.so"), "scale_it", threads=True)]

    def refuse(function: NativeFunction) -> None:
        raise InvalidRequest(f"{function.symbol} was built for ABI 7")

    with pytest.raises(
        ConfigError, match=r"kernels\.toml: kernel\[0\]\.native\.library = .* built for ABI 7"
    ):
        read_toml_file(written(folder, FULL), check_native=refuse)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'name = "scale"',
            'nam = "scale"',
            r"kernel\[0\]\.nam = 'scale': the key is unknown; did you mean name",
        ),
        ('name = "scale"', "name = 3", r"kernel\[0\]\.name = 3: give a text"),
        ('name = "scale"', "", r"kernel\[0\]\.name = None: it is missing"),
        ('name = "scale"', 'name = "a b"', r"kernel name 'a b': give a printable name without blanks"),
        ("idempotent = true", 'idempotent = "yes"', r"idempotent = 'yes': give true or false"),
        ('outputs = ["y"]', 'outputs = "y"', r"outputs = 'y': give a list"),
        ('outputs = ["y"]', "outputs = [3]", r"outputs\[0\] = 3: give a table"),
        ('"f4", "float64"', '"f4", "f5"', r"inputs\[0\]\.dtypes = 'f5': element type 'f5' is unknown"),
        ('"f4", "float64"', '"f4", 8', r"inputs\[0\]\.dtypes = 8: give the name of an element type"),
        ("[-1, 3]", "[-2, 3]", r"inputs\[0\]\.shape = \[-2, 3\]: give extents of 0 or more, or -1"),
        ("[-1, 3]", "[1.5]", r"inputs\[0\]\.shape = \[1\.5\]: give whole numbers"),
        ("default = 2 ", 'default = "2" ', r"scalars\[0\]\.default = '2': give a number"),
        ("default = 2 ", "default = 1e300 ", r"scalar a=1e\+300: out of range for f4"),
        ('dtype = "f4"', 'dtype = "c8"', r"scalar 'a' cannot be of type c8"),
        ("libscale.so", "libother.so", r"native\.library = 'libother\.so': there is no file .*libother\.so"),
        ("threads = true", "threads = 4", r"native\.threads = 4: give true or false"),
        ("symbol =", "function =", r"native\.function = 'scale_it': the key is unknown"),
        ("scale.cl", "other.cl", r"opencl\.source = 'other\.cl': there is no file"),
        (
            'source = "scale.cl"',
            'source = "scale.cl"\nbinary = "set.bin"',
            r"give either source .* or binary",
        ),
        ('source = "scale.cl"', "", r"give either source .* or binary"),
        (
            'source = "scale.cl"',
            'binary = "set.bin"',
            r"opencl\.options = .*: a program binary is built already",
        ),
        ("y.shape[1]", "z.size", r"term 'z\.size' is unknown; give an integer, a scalar \(a, on\)"),
        ("y.size", "b", r"term 'b' is unknown"),
        ("[64, 1]", "[64]", r"local_size has 1 dimensions and global_size 2"),
        ("[64, 1]", "[64, 0]", r"local_size is \(64, 0\); give positive numbers"),
        (
            'global_size = ["y.shape[1]", 4]',
            "",
            r"opencl\.global_size = \[\]: give a list of whole numbers and terms",
        ),
        ("[[kernel]]", "[kernels]\n[[kernel]]", r"kernels = \{\}: the key is unknown; did you mean kernel"),
        ("[[kernel]]", "[[kernel", r"file = 'kernels\.toml': it cannot be read as TOML"),
    ],
)
def test_what_cannot_be_followed_is_named_with_file_key_value_and_remedy(
    folder: Path, old: str, new: str, message: str
) -> None:
    assert old in FULL
    with pytest.raises(ConfigError, match=message) as caught:
        read_toml_file(written(folder, FULL.replace(old, new, 1)))
    assert caught.value.file == str(folder / "kernels.toml")


def test_a_kernel_without_implementation_and_a_file_without_kernel_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"name = 'one': it has no implementation"):
        read_toml_file(written(folder, '[[kernel]]\nname = "one"\n'))
    with pytest.raises(ConfigError, match="it defines no kernel"):
        read_toml_file(written(folder, ""))
