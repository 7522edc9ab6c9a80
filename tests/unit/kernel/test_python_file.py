from __future__ import annotations

from pathlib import Path

import pytest

from polymux.core.errors import ConfigError
from polymux.kernel.python_file import read_python_file

KERNEL = """
from polymux.kernel import kernel

@kernel("{name}", inputs="x", outputs="y")
def {name}(x, y):
    y[...] = x
"""


def written(folder: Path, text: str, name: str = "mine.py") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_kernels_come_in_the_order_of_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, KERNEL.format(name="second") + KERNEL.format(name="first"))
    assert [definition.spec.name for definition in read_python_file(file)] == ["second", "first"]


def test_an_alias_is_no_second_kernel(tmp_path: Path) -> None:
    file = written(tmp_path, KERNEL.format(name="one") + "\nother = one\n")
    assert len(read_python_file(file)) == 1


def test_definitions_are_found_beside_decorated_functions(tmp_path: Path) -> None:
    text = """
from polymux.kernel import Definition, KernelSpec, OpenCLRange, OpenCLSource
ONE = Definition(KernelSpec("one"), (OpenCLSource("__kernel void one() {}", OpenCLRange("one", (1,))),))
"""
    (definition,) = read_python_file(written(tmp_path, text))
    assert definition.implementations[0].api == "opencl"


def test_a_file_imports_its_neighbours(tmp_path: Path) -> None:
    written(tmp_path, "factor_of_neighbour = 3", "neighbour_of_kernels.py")
    file = written(tmp_path, "import neighbour_of_kernels\n" + KERNEL.format(name="one"))
    assert len(read_python_file(file)) == 1


def test_two_files_of_the_same_name_do_not_meet(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder, KERNEL.format(name=f"kernel_{folder}"))
    found = [read_python_file(tmp_path / folder / "mine.py")[0] for folder in ("a", "b")]
    modules = {definition.implementations[0].function.__module__ for definition in found}  # type: ignore[union-attr]
    assert len(modules) == 2


def test_its_functions_can_be_pickled(tmp_path: Path) -> None:
    import pickle

    (definition,) = read_python_file(written(tmp_path, KERNEL.format(name="one")))
    function = definition.implementations[0].function  # type: ignore[union-attr]
    assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize(
    ("text", "line", "value", "remedy"),
    [
        ("x = 1\ny = 1 / 0\n", "line 2", "y = 1 / 0", "ZeroDivisionError: division by zero"),
        ("def f(:\n", "line 1", "def f(:", "SyntaxError"),
        (
            "import no_such_module_anywhere\n",
            "line 1",
            "import no_such_module_anywhere",
            "ModuleNotFoundError",
        ),
        ("\n\nraise SystemExit(3)\n", "line 3", "raise SystemExit(3)", "SystemExit: 3"),
        (
            "from polymux.kernel import kernel\n\n@kernel('k', inputs='x', dtypes='f9')\ndef k(x): ...\n",
            "line 3",
            "@kernel('k', inputs='x', dtypes='f9')",
            "element type 'f9' is unknown",
        ),
    ],
)
def test_a_file_that_fails_is_named_with_the_line(
    tmp_path: Path, text: str, line: str, value: str, remedy: str
) -> None:
    file = written(tmp_path, text)
    with pytest.raises(ConfigError, match=r"mine\.py") as caught:
        read_python_file(file)
    assert (caught.value.key, caught.value.value) == (line, value)
    assert remedy in caught.value.remedy


def test_a_file_without_kernels_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="it defines no kernel; decorate a function"):
        read_python_file(written(tmp_path, "def f(x): pass\n"))
