"""The command line: `polymux COMMAND`. One file per command, each with `add_parser`; they are listed in `command_line`.

Only here is the environment read, and only here does a process end with an exit code.
"""

from polymux.cli.command_line import main

__all__ = ["main"]
