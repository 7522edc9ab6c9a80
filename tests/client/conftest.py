"""A client of a runtime inside the test's process, with kernels that show what a client can notice."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import polymux
from polymux.client import Client, Queue


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with polymux.connect(start=True, name="test") as made:
        yield made


@pytest.fixture
def queue(client: Client) -> Iterator[Queue]:
    made = client.queue()
    yield made
    made.close()
