"""``polymux replay``: run a recording through a fresh engine and compare the decisions."""

from __future__ import annotations

import argparse
from pathlib import Path

from polymux.core.errors import InvalidRequest
from polymux.sched.replay import replay
from polymux.server.recording import beside


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "replay",
        help="check that a recorded run gives the same decisions again",
        description="Feed the events that a server (polymux up --record FILE) or a simulation (polymux simulate"
        " --record FILE) has recorded to a fresh scheduling engine, and compare its decisions with the recorded ones."
        " What a server has recorded of jobs lies beside FILE (run.jobs.jsonl beside run.jsonl) and is replayed, too."
        " Exit code 1 when they differ.",
    )
    parser.add_argument("file", metavar="FILE", type=Path, help="the recording")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Replay the file, and that of jobs beside it."""
    jobs = beside(options.file)
    differ = [_replay(file) for file in (options.file, jobs) if file == options.file or file.exists()]
    return int(any(differ))


def _replay(file: Path) -> bool:
    """Replay one file; True: it was decided differently."""
    try:
        with file.open() as lines:
            result = replay(lines)
    except UnicodeDecodeError:
        raise InvalidRequest(f"{file} is no recording: it is not text") from None
    except InvalidRequest as error:
        raise InvalidRequest(f"{file}: {error}") from None
    if result.difference is not None:
        print(f"{file}: policy {result.policy}: different after {result.steps} steps\n{result.difference}")
        return True
    ending = ", the last line broke off" if result.truncated else ""
    print(f"{file}: policy {result.policy}: {result.steps} steps, all decided as recorded{ending}")
    return False
