"""The header, the library and the C examples as somebody who writes C meets them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.segment.server_process import ServerProcess

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "c"
STRICT = ("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror", "-fsyntax-only")


def flags(*options: str) -> list[str]:
    asked = [sys.executable, "-m", "polymux.segment", *options]
    return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()


def run(program: Path, server: ServerProcess, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(program), str(server.socket), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The examples, built by their own Makefile in a folder of their own."""
    folder = tmp_path_factory.mktemp("examples") / "c"
    shutil.copytree(EXAMPLES, folder, ignore=shutil.ignore_patterns("*.so", "saxpy", "heat", "gaussian"))
    subprocess.run(
        ["make", f"PYTHON={sys.executable}", "CFLAGS=-O2 -Wall -Wextra -Wpedantic -Werror"],
        cwd=folder,
        check=True,
        capture_output=True,
    )
    return folder


@pytest.fixture(scope="module")
def server(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    kernels = ("--kernels", str(built / "kernels.toml"))
    with ServerProcess(tmp_path_factory.mktemp("server"), "--device", "cpu", *kernels) as made:
        yield made


@pytest.mark.parametrize(
    ("compiler", "language", "standard"),
    [("gcc", "c", "c99"), ("gcc", "c", "c17"), ("g++", "c++", "c++11"), ("g++", "c++", "c++20")],
)
def test_the_header_compiles_without_a_warning_in_c_and_in_cpp(
    compiler: str, language: str, standard: str, tmp_path: Path
) -> None:
    source = tmp_path / "uses_header"
    source.write_text("#include <polymux.h>\nint main(void) { return sizeof(polymux_task) == 0; }\n")
    command = [compiler, "-x", language, f"-std={standard}", *STRICT, *flags("--cflags"), str(source)]
    compiled = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (compiled.returncode, compiled.stderr) == (0, "")


def test_a_cpp_program_links_against_the_library(tmp_path: Path) -> None:
    source, program = tmp_path / "name.cpp", tmp_path / "name"
    source.write_text(
        "#include <polymux.h>\n#include <cstdio>\n"
        "int main() { std::puts(polymux_status_name(POLYMUX_KERNEL_CRASHED)); }\n"
    )
    subprocess.run(["g++", str(source), *flags("--cflags", "--libs"), "-o", str(program)], check=True)
    said = subprocess.run([str(program)], capture_output=True, text=True, check=True)
    assert said.stdout == "KERNEL_CRASHED\n"


def test_asking_for_no_flags_says_what_can_be_asked() -> None:
    asked = subprocess.run(
        [sys.executable, "-m", "polymux.segment"], capture_output=True, text=True, check=False
    )
    assert asked.returncode == 2
    assert "--cflags" in asked.stderr


def test_saxpy_computes_exports_and_imports(built: Path, server: ServerProcess) -> None:
    done = run(built / "saxpy", server)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "saxpy: 1048576 elements are right",
        "saxpy: another application has read the result",
    ]


def test_heat_runs_the_kernel_of_its_own_library(built: Path, server: ServerProcess) -> None:
    done = run(built / "heat", server)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("heat: 500 steps of a 512 x 512 plate, largest error ")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "1000 equations over 2 queues"),
        (("1",), "1 equations over 1 queue,"),
        (("333", "1"), "333 equations over 1 queue,"),
        (("700", "5"), "700 equations over 5 queues"),
    ],
)
def test_gaussian_solves_over_several_queues_and_shares_the_result(
    built: Path, server: ServerProcess, arguments: tuple[str, ...], words: str
) -> None:
    done = run(built / "gaussian", server, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    solved, shared = done.stdout.splitlines()
    assert words in solved
    assert shared.rpartition(" ")[2] == solved.rpartition(" ")[2]


def test_gaussian_runs_on_opencl_as_well(built: Path, tmp_path: Path) -> None:
    pytest.importorskip("pyopencl")
    with ServerProcess(tmp_path, "--device", "opencl") as server:
        done = run(built / "gaussian", server, "500", "3")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [("0",), ("many",), ("10", "17"), ("10", "")])
def test_gaussian_refuses_numbers_that_cannot_be(
    built: Path, server: ServerProcess, arguments: tuple[str, ...]
) -> None:
    done = run(built / "gaussian", server, *arguments)
    assert done.returncode == 2
    assert "give a whole number from 1 to" in done.stderr


def test_the_server_is_empty_after_the_examples(built: Path, server: ServerProcess) -> None:
    run(built / "saxpy", server)
    state = server.status()
    assert (state["applications"], state["queues"]) == ([], [])


def test_without_a_server_an_example_says_how_to_start_one(built: Path, tmp_path: Path) -> None:
    nowhere = tmp_path / "nobody"
    done = subprocess.run([str(built / "saxpy"), str(nowhere)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "NO_SERVER" in done.stderr
    assert "polymux up" in done.stderr


def test_a_kernel_that_the_server_lacks_is_named(
    built: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with ServerProcess(tmp_path_factory.mktemp("plain"), "--device", "cpu") as plain:
        done = run(built / "heat", plain)
    assert done.returncode == 1
    assert "UNKNOWN_KERNEL" in done.stderr
    assert "heat_step" in done.stderr


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "polymux_kernel_library_abi"),
        ("unsigned polymux_kernel_library_abi(void) { return 9999; }", "9999"),
    ],
)
def test_a_library_of_another_abi_is_refused_when_the_server_starts(
    body: str, reason: str, tmp_path: Path
) -> None:
    source, library, kernels = tmp_path / "old.c", tmp_path / "old.so", tmp_path / "kernels.toml"
    source.write_text(f"{body}\nint old(void *call) {{ return call == 0; }}\n")
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    kernels.write_text('[[kernel]]\nname = "old"\nnative = { library = "old.so" }\n')
    up = [sys.executable, "-m", "polymux.cli", "up", "--socket", str(tmp_path / "socket"), "--device", "cpu"]
    started = subprocess.run(
        [*up, "--kernels", str(kernels)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert started.returncode != 0
    assert reason in started.stderr
    assert "old.so" in started.stderr
