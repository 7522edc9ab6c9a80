"""Reads the fenced blocks of a Markdown page and runs those that are marked for it.

The words after a block's language say what happens with it:

- ``console run``: its ``$`` commands run in bash, in the page's own folder, empty but for a link ``examples`` to
  those of the project; when the block also shows output, the commands have to print it (``...`` stands for anything);
- ``python run``: runs in the page's folder with the project's Python;
- ``needs=PACKAGE`` after ``run``: the page is left out where the package is not installed;
- ``c file=NAME``, ``python file=NAME``, ``toml file=NAME`` ...: is written there under that name.

Blocks run in the order of the page, so that a page can write a file, use it and look at the result.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted(
    path
    for pattern in ("*.md", "docs/*.md", "docs/decisions/*.md", "examples/**/*.md")
    for path in ROOT.glob(pattern)
)
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```[ ]*$", re.MULTILINE | re.DOTALL)
_COMMAND_TIMEOUT_S = 300
RUNTIME_FOLDER = ".runtime"


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block: its language, the words after it, its text and the line it starts at."""

    language: str
    words: tuple[str, ...]
    body: str
    line: int

    @property
    def file(self) -> str | None:
        """The name under which the block is to be written, if any."""
        return next((word[5:] for word in self.words if word.startswith("file=")), None)

    @property
    def needs(self) -> list[str]:
        """Packages without which it cannot run."""
        return [word[6:] for word in self.words if word.startswith("needs=")]

    @property
    def runs(self) -> bool:
        """Whether the block is marked for running."""
        return "run" in self.words

    def commands(self) -> list[str]:
        """Return the commands of a console block, lines ended by a backslash joined."""
        joined = self.body.replace("\\\n", " ")
        return [line[2:].strip() for line in joined.splitlines() if line.startswith("$ ")]

    def output(self) -> str:
        """Return what a console block shows besides its commands."""
        joined = self.body.replace("\\\n", " ")
        return "\n".join(line for line in joined.splitlines() if not line.startswith("$ "))


def blocks(text: str) -> list[Block]:
    """Return the fenced blocks of a page."""
    found = []
    for match in _FENCE.finditer(text):
        language, *words = match["info"].split() or [""]
        found.append(Block(language, tuple(words), match["body"], text.count("\n", 0, match.start()) + 1))
    return found


def matches(expected: str, actual: str) -> bool:
    """Whether some output is what a page shows, where ``...`` stands for anything."""
    pattern = ".*?".join(re.escape(part.strip()) for part in expected.split("..."))
    return re.fullmatch(rf"\s*{pattern}\s*", actual, re.DOTALL) is not None


def run(block: Block, folder: Path) -> None:
    """Write or run one block in a folder; AssertionError with the output when it fails."""
    if block.file is not None:
        (folder / block.file).parent.mkdir(parents=True, exist_ok=True)
        (folder / block.file).write_text(block.body)
    if not block.runs:
        return
    for shown in ("examples", "tests"):
        if not (folder / shown).exists():
            (folder / shown).symlink_to(ROOT / shown)
    if block.language == "console":
        command = ["bash", "-euo", "pipefail", "-c", "\n".join(block.commands())]
    else:
        command = [sys.executable, "-c", block.body]
    status, shown = _output_of(command, folder)
    assert status == 0, f"line {block.line}: exit status {status}\n{shown}"
    if block.language == "console" and block.output().strip():
        assert matches(block.output(), shown), f"line {block.line} shows other output:\n{shown}"


def _output_of(command: list[str], folder: Path) -> tuple[int | str, str]:
    """Run a command; what it has started in the background ends with it when it takes too long."""
    with subprocess.Popen(
        command, cwd=folder, env=_environment(folder), stdin=subprocess.DEVNULL, text=True, start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        try:
            shown, _ = process.communicate(timeout=_COMMAND_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            shown, _ = process.communicate()
            return f"none after {_COMMAND_TIMEOUT_S} s", shown
    return process.returncode, shown


def stop_server(folder: Path) -> None:
    """Stop the server that a page's commands have left running, if any."""
    if any((folder / RUNTIME_FOLDER).rglob("*.sock")):
        command = [sys.executable, "-m", "polymux.cli", "down"]
        subprocess.run(command, env=_environment(folder), capture_output=True, timeout=60, check=False)


def _environment(folder: Path) -> dict[str, str]:
    runtime = folder / RUNTIME_FOLDER
    runtime.mkdir(mode=0o700, exist_ok=True)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PATH": path, "XDG_RUNTIME_DIR": str(runtime), "COLUMNS": "110"}
