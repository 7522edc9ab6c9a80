"""Where this user's profiles are stored when nothing else is said."""

from __future__ import annotations

import os
from pathlib import Path


def default_store_path() -> Path:
    """``$POLYMUX_PROFILES``, else a file in this user's data directory."""
    if given := os.environ.get("POLYMUX_PROFILES"):
        return Path(given)
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "polymux" / "profiles.db"
