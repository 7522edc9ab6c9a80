"""Tests run the sources, also where `make fast` has compiled some of them: compiled classes cannot be patched.

Hypothesis sets no deadline for an example: no test asserts a time on the clock.
"""

from __future__ import annotations

import os

from hypothesis import settings

os.environ["POLYMUX_COMPILED"] = "off"
settings.register_profile("polymux", deadline=None)
settings.load_profile("polymux")
