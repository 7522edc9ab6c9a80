"""Addresses of the metrics endpoint as people write them."""

from __future__ import annotations

import pytest

from polymux.metrics.address import Address, parse_address


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9464", Address("127.0.0.1", 9464)),
        ("0", Address("127.0.0.1", 0)),
        ("0.0.0.0:80", Address("0.0.0.0", 80)),
        ("localhost:9464", Address("localhost", 9464)),
        ("[::1]:9464", Address("::1", 9464)),
    ],
)
def test_a_port_is_on_the_loopback_unless_a_host_is_given(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "x",
        "65536",
        "-1",
        "1.5",
        "localhost",
        "localhost:",
        ":9464",
        "::1:9464",
        "a:b",
        "９４６４",
        "9" * 99,
    ],
)
def test_anything_else_is_refused_with_what_would_be_right(text: str) -> None:
    with pytest.raises(ValueError, match=r"give \[HOST:\]PORT, for example 9464"):
        parse_address(text)


@pytest.mark.parametrize("text", ["127.0.0.1:1", "[::1]:2"])
def test_an_address_is_written_as_it_is_read(text: str) -> None:
    assert str(parse_address(text)) == text
