"""The page on faults names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_page_on_faults_names_exists() -> None:
    named = re.findall(r"`([a-z_/]+(?:\.py|/))`", (ROOT / "docs" / "faults.md").read_text())
    assert len(named) > 20
    assert [name for name in named if name != "tests/" and not (ROOT / "tests" / name).exists()] == []
