"""The scripts of examples/ as a user runs them: against a server, over several queues, with words for what is wrong."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.segment.server_process import ServerProcess

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SCRIPTS = ("gaussian", "hotspot", "lavamd", "needleman_wunsch", "particle_filter", "pathfinder")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    devices = ("--device", "cpu:0", "--device", "cpu")
    with ServerProcess(tmp_path_factory.mktemp("server"), *devices) as made:
        yield made


def script(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_runs_over_queues_of_two_devices_and_without_a_server_and_checks_its_result(
    name: str, server: ServerProcess
) -> None:
    choice = ("--size", "2MiB", "--queues", "3", "--device", "cpu:0", "--device", "cpu:1", "--repeat", "2")
    done = script(name, "--socket", str(server.socket), *choice, "--native", "cpu")
    assert (done.returncode, done.stderr) == (0, "")
    assert "run 2 of 2" in done.stdout
    assert "3 queues on cpu:0 and cpu:1" in done.stdout
    assert "the result is right" in done.stdout
    assert "cpu without a server" in done.stdout
    assert server.status()["applications"] == []


@pytest.mark.parametrize("name", ["hotspot", "particle_filter"])
def test_a_script_draws_a_picture(name: str, server: ServerProcess, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "picture.png"
    done = script(name, "--socket", str(server.socket), "--size", "1MiB", "--draw", str(picture))
    assert (done.returncode, done.stderr) == (0, "")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_needleman_wunsch_prints_as_much_of_the_alignment_as_asked_for(server: ServerProcess) -> None:
    done = script("needleman_wunsch", "--socket", str(server.socket), "--size", "1MiB", "--letters", "100")
    assert (done.returncode, done.stderr) == (0, "")
    _, alignment = done.stdout.split("It begins:\n\n")
    first, second = (part.split("\n") for part in alignment.strip("\n").split("\n\n"))
    assert [len(line) for line in (first[0], first[2], second[0], second[2])] == [80, 80, 20, 20]


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("--size", "lots"), 2, "'lots': give a number of bytes"),
        (("--queues", "0"), 2, "'0': give a whole number of 1 or more"),
        (("--device", "gpu:9"), 1, "device 'gpu:9' does not exist; the server has cpu:0, cpu:1"),
        (("--socket", "/nowhere/socket"), 1, "/nowhere/socket"),
    ],
)
def test_what_cannot_be_is_told(
    arguments: tuple[str, ...], status: int, words: str, server: ServerProcess
) -> None:
    done = script("pathfinder", "--socket", str(server.socket), *arguments)
    assert done.returncode == status
    assert words in done.stderr
    assert "Traceback" not in done.stderr
