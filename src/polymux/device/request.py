"""What an operator asks for: a device string, read and checked.

::

    cpu                                  all cores of this process, on the segment itself
    cpu:0-1                              these cores, with memory of its own
    cpu:0-1,4,streams=2,memory=host      more cores; options follow as NAME=VALUE
    cpu,shares=3+1                       a stream on three cores and one on the fourth
    cpu:1,models=openvino                models that have a version for OpenVINO run with it
    cpu,shares=nested                    a stream on all cores, one on each half, each quarter, ..., each core
    cpu:1,models=onnxruntime:dnnl        or with another execution provider of onnxruntime
    onnxruntime:cuda                     an accelerator behind an execution provider; runs models only
    opencl                               every OpenCL device
    opencl:1,memory_nbytes=2GiB          the second one that the drivers list
    opencl:0,launch_ahead=1              each task ends before its stream starts the next one
    opencl:0,memory=host                 on the segment itself, where the device is the host's cores
    simulated=fpga.toml                  the device that the file describes
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from polymux.core.device_spec import Share
from polymux.core.errors import ConfigError
from polymux.core.nbytes import parse_nbytes

MAX_STREAMS = 64

LAUNCH_AHEAD = 8
"""Tasks that a stream starts ahead, where it can and nothing else is asked for."""
MAX_LAUNCH_AHEAD = 1024

_API = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class DeviceRequest:
    """One device string.

    Parameters
    ----------
    text : str
        As it was written.
    api : str
        Which entry of the registry opens it.
    target : str
        What follows the colon, without options: cores, an index; empty: all.
    file : str
        What follows the equals sign; empty: none.
    options : mapping of str to str
    source : str
        Where the string was written, for errors.
    """

    text: str
    api: str
    target: str = ""
    file: str = ""
    options: Mapping[str, str] = field(default_factory=dict)
    source: str = "--device"

    def error(self, value: object, remedy: str) -> ConfigError:
        """Make the error that says what is wrong with this string."""
        return ConfigError(self.source, self.text, value, remedy)

    def check_options(self, known: Collection[str]) -> None:
        """Refuse options that the device does not have.

        Raises
        ------
        ConfigError
        """
        for name, value in self.options.items():
            if name not in known:
                remedy = f"{self.api} devices have no option {name!r}; they have {', '.join(sorted(known))}"
                raise self.error(f"{name}={value}", remedy)

    def streams(self, default: int, units: int) -> int:
        """Option ``streams``: number of accelerator threads.

        Parameters
        ----------
        default : int
            Where neither ``streams`` nor ``shares`` says it.
        units : int
            Compute units of the device.

        Raises
        ------
        ConfigError
        """
        text = self.options.get("streams")
        if self.options.get("shares") == "nested":
            if text is not None:
                remedy = "shares=nested makes a stream for each part of the device; leave streams=N out"
                raise self.error(f"streams={text}", remedy)
            return len(nested_shares(units))
        if text is None:
            return len(self._unit_counts() or range(default))
        if not text.isdecimal() or not 1 <= int(text) <= MAX_STREAMS:
            raise self.error(f"streams={text}", f"give a number of streams from 1 to {MAX_STREAMS}")
        return int(text)

    def shares(self, units: int, streams: int) -> tuple[Share, ...]:
        """Option ``shares``: how the streams divide the device's units, in their order.

        ``whole`` (every stream uses all units), ``split`` (each an equal part), the number of units of each stream:
        ``4+2+2``, or ``nested`` (`nested_shares`).

        Parameters
        ----------
        units : int
            Compute units of the device.
        streams : int
            Its streams.

        Returns
        -------
        tuple of Share
            One per stream; empty for ``whole``.

        Raises
        ------
        ConfigError
            If there are fewer units than that takes, or not one count for each stream.
        """
        counts = self._unit_counts()
        text = self.options.get("shares", "whole")
        if text == "nested":
            return nested_shares(units)
        if text == "split":
            if streams > units:
                remedy = (
                    f"the device has {units} units for {streams} streams; give fewer streams or shares=whole"
                )
                raise self.error("shares=split", remedy)
            counts = [units // streams + (index < units % streams) for index in range(streams)]
        if counts is None:
            return ()
        if len(counts) != streams or sum(counts) > units:
            raise self.error(
                f"shares={text}",
                f"{len(counts)} shares of {sum(counts)} units together; the device has {units} units and {streams}"
                " streams: give one number of units for each stream",
            )
        ends = list(accumulate(counts))
        return tuple(Share(tuple(range(end - n, end))) for end, n in zip(ends, counts, strict=True))

    def launch_ahead(self) -> int:
        """Option ``launch_ahead``: tasks that a stream may have started and not ended.

        Raises
        ------
        ConfigError
        """
        text = self.options.get("launch_ahead", str(LAUNCH_AHEAD))
        if not text.isdecimal() or not 1 <= int(text) <= MAX_LAUNCH_AHEAD:
            remedy = f"give the tasks that a stream may start ahead, from 1 (none) to {MAX_LAUNCH_AHEAD}"
            raise self.error(f"launch_ahead={text}", remedy)
        return int(text)

    def _unit_counts(self) -> list[int] | None:
        """Read the numbers of units in option ``shares``; None when it has none."""
        text = self.options.get("shares", "whole")
        if text in ("whole", "split", "nested"):
            return None
        parts = [part.strip() for part in text.split("+")]
        if not all(part.isdecimal() and int(part) > 0 for part in parts) or len(parts) > MAX_STREAMS:
            remedy = "give whole, split, nested, or the number of units of each stream, such as 2+1+1"
            raise self.error(f"shares={text}", remedy)
        return [int(part) for part in parts]

    def memory_nbytes(self, default: int) -> int:
        """Option ``memory_nbytes``: capacity of its memory; a number of bytes or ``"512MiB"``.

        Raises
        ------
        ConfigError
        """
        text = self.options.get("memory_nbytes")
        if text is None:
            return default
        try:
            return parse_nbytes(text)
        except ValueError as problem:
            raise self.error(f"memory_nbytes={text}", str(problem)) from None


def nested_shares(units: int) -> tuple[Share, ...]:
    """Halve a device again and again: the parts of the binary tree of its units, level by level.

    Parameters
    ----------
    units : int
        Compute units of the device.

    Returns
    -------
    tuple of Share
        The whole device, its halves, their halves and so on down to single units, each part once; the first of two
        halves has the odd unit. Two parts of one level have no unit in common. Levels that would make more than
        `MAX_STREAMS` parts together are left out.
    """
    level = [tuple(range(units))]
    found = list(level)
    while True:
        halves = [half for part in level if len(part) > 1 for half in _halves(part)]
        if not halves or len(found) + len(halves) > MAX_STREAMS:
            return tuple(Share(part) for part in found)
        found += halves
        level = halves


def _halves(part: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    middle = (len(part) + 1) // 2
    return part[:middle], part[middle:]


def parse_request(text: str, source: str = "--device") -> DeviceRequest:
    """Read a device string.

    Parameters
    ----------
    text : str
    source : str
        Where it was written, for errors.

    Raises
    ------
    ConfigError
        If it is no device string; whether the device has such a target and options is checked when it is opened.
    """
    head, *items = (item.strip() for item in text.split(","))
    api, separator, rest = _split_head(head)
    if not _API.fullmatch(api):
        raise ConfigError(
            source, text, head, "begin with the kind of device, such as cpu, opencl or simulated=FILE"
        )
    if separator and not rest:
        raise ConfigError(source, text, head, f"something must follow the {separator!r}")
    targets = [rest] if separator == ":" else []
    options: dict[str, str] = {}
    for item in items:
        name, equals, value = (part.strip() for part in item.partition("="))
        if equals and name and value and name not in options:
            options[name] = value
        elif item and not equals and targets and not options:
            targets.append(item)
        else:
            remedy = "write options as NAME=VALUE, each once, after the cores: cpu:0-1,4,streams=2"
            raise ConfigError(source, text, item, remedy)
    return DeviceRequest(text, api, ",".join(targets), rest if separator == "=" else "", options, source)


def _split_head(head: str) -> tuple[str, str, str]:
    for index, character in enumerate(head):
        if character in ":=":
            return head[:index].strip(), character, head[index + 1 :].strip()
    return head, "", ""
