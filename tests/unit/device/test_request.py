from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polymux.core.errors import ConfigError
from polymux.core.nbytes import parse_nbytes
from polymux.device.request import MAX_STREAMS, DeviceRequest, nested_shares, parse_request


@pytest.mark.parametrize(
    ("text", "api", "target", "file", "options"),
    [
        ("cpu", "cpu", "", "", {}),
        ("cpu:0-3", "cpu", "0-3", "", {}),
        ("cpu:0-1,4,6-7,streams=2", "cpu", "0-1,4,6-7", "", {"streams": "2"}),
        ("cpu,streams=1", "cpu", "", "", {"streams": "1"}),
        (" opencl : 1 , memory_nbytes = 2GiB ", "opencl", "1", "", {"memory_nbytes": "2GiB"}),
        ("simulated=a/b:c=d.toml,streams=4", "simulated", "", "a/b:c=d.toml", {"streams": "4"}),
        ("acme-9:x=y", "acme-9", "x=y", "", {}),
    ],
)
def test_a_device_string_is_read_into_its_parts(
    text: str, api: str, target: str, file: str, options: dict[str, str]
) -> None:
    request = parse_request(text)
    assert (request.api, request.target, request.file, request.options) == (api, target, file, options)


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("", "begin with the kind"),
        ("CPU", "begin with the kind"),
        ("0-3", "begin with the kind"),
        ("cpu:", "something must follow"),
        ("simulated=", "something must follow"),
        ("cpu,4", "NAME=VALUE"),
        ("cpu:0,streams=2,4", "NAME=VALUE"),
        ("cpu:0,,1", "NAME=VALUE"),
        ("cpu,streams=", "NAME=VALUE"),
        ("cpu,=3", "NAME=VALUE"),
        ("cpu,streams=1,streams=2", "each once"),
    ],
)
def test_a_string_that_is_none_is_an_error_with_the_string_and_the_remedy(text: str, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy) as failure:
        parse_request(text, "polymux.toml")
    assert failure.value.file == "polymux.toml"
    assert failure.value.key == text


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    with contextlib.suppress(ConfigError):
        assert parse_request(text).text == text


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("1", 1),
        ("4096", 4096),
        ("512MiB", 512 << 20),
        ("1.5 GiB", 3 << 29),
        ("2GB", 2 * 10**9),
        ("3kB", 3000),
        ("18446744073709551615", (1 << 64) - 1),
    ],
)
def test_sizes_are_numbers_or_have_a_unit(text: str, nbytes: int) -> None:
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize("text", ["", "0", "-1", "4 GIB", "many", "1e9", "0.1B"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="number of bytes"):
        parse_nbytes(text)


def test_options_have_defaults_and_are_checked() -> None:
    request = DeviceRequest("cpu", "cpu", options={"streams": "3", "memory_nbytes": "1MiB"})
    request.check_options(["streams", "memory_nbytes"])
    assert request.streams(1, 4) == 3
    assert request.memory_nbytes(5) == 1 << 20
    assert DeviceRequest("cpu", "cpu").streams(7, 4) == 7
    assert DeviceRequest("cpu", "cpu").memory_nbytes(9) == 9


@pytest.mark.parametrize("value", ["0", "65", "-1", "two", "1.5", "²"])
def test_a_number_of_streams_that_cannot_be_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="from 1 to 64"):
        DeviceRequest("cpu", "cpu", options={"streams": value}).streams(1, 4)


def test_an_unknown_option_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ConfigError, match=r"speed=3.*no option 'speed'; they have memory, streams"):
        DeviceRequest("cpu", "cpu", options={"speed": "3"}).check_options(["streams", "memory"])


@pytest.mark.parametrize(
    ("options", "units", "shares"),
    [
        ("", 4, []),
        (",shares=whole", 4, []),
        (",shares=split", 4, [(0, 1), (2, 3)]),
        (",streams=3,shares=split", 8, [(0, 1, 2), (3, 4, 5), (6, 7)]),
        (",shares=2+1+1", 4, [(0, 1), (2,), (3,)]),
        (",shares = 1 + 2", 4, [(0,), (1, 2)]),
        (",streams=1,shares=3", 4, [(0, 1, 2)]),
        (",shares=nested", 1, [(0,)]),
        (",shares=nested", 2, [(0, 1), (0,), (1,)]),
        (",shares=nested", 3, [(0, 1, 2), (0, 1), (2,), (0,), (1,)]),
        (",shares=nested", 4, [(0, 1, 2, 3), (0, 1), (2, 3), (0,), (1,), (2,), (3,)]),
    ],
)
def test_shares_divide_the_units_among_the_streams_in_order(
    options: str, units: int, shares: list[tuple[int, ...]]
) -> None:
    request = parse_request("cpu" + options)
    streams = request.streams(2, units)
    assert [share.units for share in request.shares(units, streams)] == shares
    assert not shares or streams == len(shares)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ("shares=3+2", "4 units and 2 streams"),
        ("shares=1+1+1,streams=2", "one number of units for each stream"),
        ("shares=split,streams=5", "give fewer streams"),
        ("shares=nested,streams=3", "leave streams=N out"),
        ("shares=half", "give whole, split"),
        ("shares=2+", "give whole, split"),
        ("shares=0+1", "give whole, split"),
        ("shares=-1", "give whole, split"),
        ("shares=" + "+".join(["1"] * 65), "give whole, split"),
    ],
)
def test_shares_that_cannot_be_name_the_value_and_the_remedy(options: str, remedy: str) -> None:
    request = parse_request("cpu," + options)
    with pytest.raises(ConfigError, match=remedy) as failure:
        request.shares(4, request.streams(2, 4))
    assert "=" in str(failure.value.value)


@given(st.integers(1, 300))
@settings(deadline=None)
def test_nested_shares_are_a_tree_whose_levels_lie_side_by_side(units: int) -> None:
    parts = [share.units or () for share in nested_shares(units)]
    assert len(parts) == len(set(parts)) <= MAX_STREAMS
    assert parts[0] == tuple(range(units))
    assert all(part == tuple(range(part[0], part[-1] + 1)) for part in parts)
    for part in parts[1:]:
        above = [set(other) for other in parts if set(part) < set(other)]
        (parent,) = [other for other in above if all(other <= ancestor for ancestor in above)]
        sibling = parent - set(part)
        assert tuple(sorted(sibling)) in parts
        assert abs(len(sibling) - len(part)) <= 1
