"""Where profiles are stored: as an option says, else as the environment does."""

from __future__ import annotations

import argparse
import os
from pathlib import Path


def default_store_path() -> Path:
    """``$POLYMUX_PROFILES``, else a file in this user's data directory."""
    if given := os.environ.get("POLYMUX_PROFILES"):
        return Path(given)
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "polymux" / "profiles.db"


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
