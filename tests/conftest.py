"""Tests run the sources, also where `make fast` has compiled some of them: compiled classes cannot be patched."""

from __future__ import annotations

import os

os.environ["POLYMUX_COMPILED"] = "off"
