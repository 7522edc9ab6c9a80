"""The documentation's commands run, the other commands exist, and its links lead somewhere."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from polymux.cli.command_line import COMMANDS
from tests.docs.page import PAGES, ROOT, Block, blocks, matches, run, stop_server

_LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ +(.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "page", [page for page in PAGES if any(block.runs for block in blocks(page.read_text()))], ids=_name
)
def test_blocks_marked_for_running_run(page: Path, tmp_path: Path) -> None:
    found = blocks(page.read_text())
    for package in {package for block in found for package in block.needs}:
        pytest.importorskip(package, reason=f"the page needs {package}, which is not installed")
    try:
        for block in found:
            run(block, tmp_path)
    finally:
        stop_server(tmp_path)


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_relative_links_lead_to_files_and_headings(page: Path) -> None:
    dead = []
    for target in (first or second for first, second in _LINK.findall(page.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        if not linked.exists() or (anchor and anchor not in _anchors(linked)):
            dead.append(target)
    assert dead == []


@cache
def _make_targets(folder: str) -> set[str]:
    return set(re.findall(r"^([a-z]+):", (ROOT / folder / "Makefile").read_text(), re.MULTILINE))


@cache
def _help(subcommand: str) -> str | None:
    asked = [sys.executable, "-m", "polymux.cli", *subcommand.split(), "--help"]
    answer = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
    return answer.stdout if answer.returncode == 0 else None


def _complaint(words: list[str]) -> str | None:
    """Say what is wrong with a command of the documentation, None when it exists with those options."""
    if words[:1] == ["make"]:
        folder, targets = (words[2], words[3:]) if words[1:2] == ["-C"] else (".", words[1:])
        unknown = [word for word in targets if "=" not in word and word not in _make_targets(folder)]
        return f"make has no target {unknown}" if unknown else None
    if words[:1] != ["polymux"]:
        return None
    named = [word for word in words[1:] if not word.startswith("-")]
    subcommand = " ".join(named[:2]) if " ".join(named[:2]) in COMMANDS else "".join(named[:1])
    text = _help(subcommand)
    if text is None:
        return f"polymux has no command {subcommand!r}"
    options = [word.partition("=")[0] for word in words[1:] if word.startswith("--")]
    unknown = [option for option in options if not re.search(rf"{option}\b", text)]
    return f"polymux {subcommand} has no option {unknown}" if unknown else None


def _simple_commands(line: str) -> list[list[str]]:
    """Return the words of each command in a shell line, split at operators such as ``&&``, ``;`` and ``|``."""
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    commands: list[list[str]] = [[]]
    for word in words:
        if set(word) <= set("();<>|&"):
            commands.append([])
        else:
            commands[-1].append(word)
    return commands


@pytest.mark.parametrize("page", PAGES, ids=_name)
def test_commands_that_are_shown_exist_with_their_options(page: Path) -> None:
    shown = [block for block in blocks(page.read_text()) if block.language == "console"]
    lines = [line for block in shown for line in block.commands()]
    complaints = [_complaint(command) for line in lines for command in _simple_commands(line)]
    assert [complaint for complaint in complaints if complaint] == []


def test_a_block_knows_its_language_words_and_commands() -> None:
    text = "a\n```console run\n$ echo one \\\n  two\none two\n```\n```c file=x.c\nint x;\n```\n"
    console, c = blocks(text)
    assert (console.language, console.runs, console.line) == ("console", True, 2)
    assert [command.split() for command in console.commands()] == [["echo", "one", "two"]]
    assert console.output() == "one two"
    assert (c.file, c.runs, c.body) == ("x.c", False, "int x;\n")


def test_running_a_block_fails_on_an_exit_status_and_on_other_output(tmp_path: Path) -> None:
    run(Block("console", ("run",), "$ echo one; echo two\none\n...\n", 1), tmp_path)
    with pytest.raises(AssertionError, match="exit status 3"):
        run(Block("console", ("run",), "$ exit 3\n", 1), tmp_path)
    with pytest.raises(AssertionError, match="other output"):
        run(Block("console", ("run",), "$ echo one\ntwo\n", 1), tmp_path)
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        run(Block("python", ("run",), "1 / 0\n", 1), tmp_path)


def test_dots_in_shown_output_stand_for_anything() -> None:
    assert matches("a ... c\n", "a b\nb c")
    assert not matches("a ... c", "a b")


@pytest.mark.parametrize("command", ["make nonsense", "polymux nonsense", "polymux up --nonsense 3"])
def test_a_shown_command_that_does_not_exist_is_reported(command: str) -> None:
    assert _complaint(command.split()) is not None


def test_a_line_is_split_at_operators_but_not_within_quotes() -> None:
    line = "a 'b;c' && polymux status|grep \"x | y\"; make  # why"
    assert _simple_commands(line) == [["a", "b;c"], ["polymux", "status"], ["grep", "x | y"], ["make"]]
