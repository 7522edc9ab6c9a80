from __future__ import annotations

import pytest

from polymux.policy.serving import registry


@pytest.fixture(autouse=True)
def _policy_of_the_rig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry.POLICIES, "rig", "tests.unit.serving.scheduling.rig:Policy")
