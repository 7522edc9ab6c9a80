"""Where profiles are stored: as an option says, else as the environment does."""

from __future__ import annotations

import argparse
from pathlib import Path

from polymux.profiles.default_path import default_store_path


def add_store_option(parser: argparse._ActionsContainer) -> None:
    """Add ``--store``."""
    parser.add_argument(
        "--store",
        metavar="FILE",
        type=Path,
        help="the profile store (default: $POLYMUX_PROFILES, else ~/.local/share/polymux/profiles.db)",
    )


def store_path(options: argparse.Namespace) -> Path:
    """Path of the store: as given, else the default."""
    return options.store or default_store_path()
