"""The endpoint answers whoever asks properly, and nobody can make it hold anything up."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from typing import Any

import pytest

from polymux.core.errors import ConfigError
from polymux.metrics.address import Address
from polymux.metrics.endpoint import MAX_CONNECTIONS, Endpoint
from polymux.metrics.exposition import Metrics
from tests.unit.metrics.states import state


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    made = Endpoint(Address("127.0.0.1", 0), Metrics(state))
    made.start()
    yield made
    made.close()


def ask(endpoint: Endpoint, method: str, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection(*endpoint.address, timeout=20)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    return answer.status, dict(answer.getheaders()), answer.read()


def test_the_metrics_are_at_their_path_in_the_format_that_is_asked_for(endpoint: Endpoint) -> None:
    status, headers, body = ask(endpoint, "GET", "/metrics")
    assert (status, headers["Content-Type"].split(";")[0]) == (200, "text/plain")
    assert b"polymux_up 1.0" in body
    status, headers, body = ask(endpoint, "GET", "/metrics?x=1", Accept="application/openmetrics-text")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    assert ask(endpoint, "HEAD", "/metrics")[::2] == (200, b"")


@pytest.mark.parametrize(
    ("method", "path", "code"), [("GET", "/", 404), ("GET", "/metric", 404), ("POST", "/metrics", 501)]
)
def test_other_requests_are_refused(endpoint: Endpoint, method: str, path: str, code: int) -> None:
    assert ask(endpoint, method, path)[0] == code


def test_connections_that_say_nothing_take_only_so_many_places(endpoint: Endpoint) -> None:
    silent = [socket.create_connection(endpoint.address, timeout=20) for _ in range(MAX_CONNECTIONS)]
    with socket.create_connection(endpoint.address, timeout=20) as one_more:
        assert one_more.recv(1) == b""
    for connection in silent:
        connection.close()
    for _ in range(200):  # places are free again as soon as their threads notice
        try:
            assert ask(endpoint, "GET", "/metrics")[0] == 200
            return
        except (http.client.RemoteDisconnected, ConnectionError):
            continue
    raise AssertionError("the places of closed connections stay taken")


def test_a_broken_request_is_no_trouble(endpoint: Endpoint) -> None:
    with socket.create_connection(endpoint.address, timeout=20) as connection:
        connection.sendall(b"\x00\xff nonsense\r\n\r\n")
        assert b"400" in connection.recv(4096)
    assert ask(endpoint, "GET", "/metrics")[0] == 200


def test_an_address_that_cannot_be_had_is_named_with_the_remedy(endpoint: Endpoint) -> None:
    for address in (endpoint.address, Address("192.0.2.1", 9464), Address("no-such-host.invalid", 9464)):
        with pytest.raises(
            ConfigError, match=r"cannot listen there: .*; give another \[HOST:\]PORT"
        ) as caught:
            Endpoint(address, Metrics(state))
        assert str(address) in str(caught.value)


def test_an_endpoint_that_was_not_started_can_be_closed() -> None:
    Endpoint(Address("127.0.0.1", 0), Metrics(state)).close()


def test_a_status_that_cannot_be_had_is_answered_all_the_same() -> None:
    def gone() -> Any:
        raise TimeoutError("the scheduler does not answer")

    endpoint = Endpoint(Address("127.0.0.1", 0), Metrics(gone))
    endpoint.start()
    try:
        assert b"polymux_up 0.0" in ask(endpoint, "GET", "/metrics")[2]
    finally:
        endpoint.close()
