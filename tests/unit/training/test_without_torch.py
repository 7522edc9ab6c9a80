"""Without PyTorch the package says what to install."""

from __future__ import annotations

import subprocess
import sys


def test_the_import_names_the_remedy() -> None:
    program = "import sys; sys.modules['torch'] = None; import polymux.training"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "polymux.training needs PyTorch" in done.stderr
    assert "pip install 'polymux[train]'" in done.stderr
