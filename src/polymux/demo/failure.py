"""Why a demo cannot go on."""

from __future__ import annotations

from polymux.core.errors import PolymuxError


class DemoFailed(PolymuxError):
    """The demo cannot start or go on; the message names what is missing or what failed, and the remedy."""
