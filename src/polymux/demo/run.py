"""One run of the demo, from the start of its processes to the last picture."""

from __future__ import annotations

import contextlib
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from polymux.demo import children
from polymux.demo.applications import Applications
from polymux.demo.failure import DemoFailed
from polymux.demo.heat import APPLICATION, KERNEL, run_heat
from polymux.demo.message import Answers, Finding, Message, Steps
from polymux.demo.models import MODELS, link_repository
from polymux.demo.operator import Operator
from polymux.demo.options import DemoOptions
from polymux.demo.outcome import Outcome
from polymux.demo.report import TRACE, leave_files, prepare_folder
from polymux.demo.screen import Screen
from polymux.demo.summary import print_summary
from polymux.demo.tally import Tally
from polymux.demo.timeline import read_timeline
from polymux.demo.workload import WORKLOADS, run_workload

__all__ = ["run"]

_LISTEN_S = 0.1
_MIGRATIONS = 8
_LEAST_PERIOD_S = 1.0


def run(options: DemoOptions, console: Console) -> int:
    """Run the demo and tell how it goes.

    Returns
    -------
    int
        Exit code: 0 when every result was right, 1 when something was lost or wrong.

    Raises
    ------
    DemoFailed
        When it cannot start or go on; everything that it started has ended then.
    KeyboardInterrupt
        On SIGINT, SIGTERM and SIGHUP; everything that it started has ended then.
    """
    prepare_folder(options.folder)
    with _interruptible(), tempfile.TemporaryDirectory(prefix="polymux-demo-") as name:
        demo = _Demo(options, Path(name), Screen(console))
        outcome, files = demo.run()
    print_summary(console, outcome, files)
    return 1 if outcome.problems else 0


class _Demo:
    def __init__(self, options: DemoOptions, folder: Path, screen: Screen) -> None:
        self._options = options
        self._folder = folder
        self._screen = screen
        self._socket = folder / "socket"
        self._trace = options.folder / TRACE
        self._temperatures = folder / "temperatures.npy"
        self._tally = Tally(list(MODELS))
        self._steps: Steps | None = None
        self._longest_ns = 0
        self._begin_ns = self._end_ns = 0

    def run(self) -> tuple[Outcome, list[tuple[Path, str]]]:
        models = self._folder / "models"
        link_repository(models)
        with Applications() as applications:
            for name in WORKLOADS:
                applications.start(name, run_workload, name)
            with children.start_server(
                self._socket, self._trace, self._options.devices, self._folder / "up.log"
            ) as server:
                with self._screen.step("Start the server, polymux up"):
                    children.wait_for_server(server, self._socket, lambda: self._listen(applications, 0))
                with _blamed_first(server):
                    operator = self._run_on(server, models, applications)
            with self._screen.step("Check the numerical application against NumPy"):
                while not applications.ended(APPLICATION):
                    self._listen(applications)
                    self._screen.note(self._steps.note if self._steps else "")
            findings = [finding for found in applications.findings.values() for finding in found]
        with self._screen.step("Draw who ran where and when"):
            return self._tell(operator, findings)

    def _run_on(self, server: children.Child, models: Path, applications: Applications) -> Operator:
        with children.start_front_end(models, self._socket, self._folder / "serve.log") as front_end:
            applications.start(APPLICATION, run_heat, str(self._socket), self._temperatures)
            with self._screen.step("Load four models behind HTTP, polymux serve"):
                address = children.wait_for_front_end(front_end, lambda: self._listen(applications, 0))
            with self._screen.step("Compute what the models answer when run directly, to compare with"):
                while not applications.all_prepared:
                    self._listen(applications)
            period_s = max(_LEAST_PERIOD_S, self._options.seconds / (_MIGRATIONS + 0.5))
            operator = Operator(str(self._socket), period_s)
            with contextlib.closing(operator):
                self._load(address, applications, operator, [server, front_end])
            self._screen.say(f"{self._options.seconds:g} s of load are over; every answer has been compared")
        return operator

    def _load(
        self, address: str, applications: Applications, operator: Operator, watched: list[children.Child]
    ) -> None:
        """Run all applications for a while, and wait for what is still under way then."""
        self._begin_ns = time.monotonic_ns()
        applications.begin(address)
        operator.start()
        with self._screen:
            while not all(applications.ended(name) for name in WORKLOADS):
                elapsed_s = (time.monotonic_ns() - self._begin_ns) / 1e9
                if elapsed_s >= self._options.seconds and not applications.end.is_set():
                    operator.stop()
                    applications.end.set()
                self._listen(applications)
                for child in watched:
                    child.check()
                if operator.problem is not None:
                    raise DemoFailed(f"the server cannot be asked any more: {operator.problem}")
                self._screen.show(elapsed_s, self._options.seconds, self._tally, self._steps, operator)
        self._end_ns = time.monotonic_ns()
        operator.look()

    def _tell(self, operator: Operator, findings: list[Finding]) -> tuple[Outcome, list[tuple[Path, str]]]:
        timeline = read_timeline(
            self._trace, self._begin_ns, self._end_ns, operator.applications(), self._tally.answers
        )
        steps = self._steps.steps if self._steps else 0
        places = timeline.places(KERNEL)
        traced = sum(places.values())
        split = ", ".join(f"{count:,} on {device}" for device, count in places.items())
        findings.append(
            Finding(
                "steps submitted, against tasks that ran by the trace",
                f"{steps:,} and {traced:,}: {split}",
                steps == traced > 0,
            )
        )
        outcome = Outcome(
            (self._end_ns - self._begin_ns) / 1e9,
            self._tally,
            steps,
            self._longest_ns / 1e6,
            tuple(operator.migrations),
            operator.copied_nbytes(),
            tuple(operator.devices),
            tuple(findings),
        )
        return outcome, leave_files(self._options.folder, outcome, timeline, self._temperatures)

    def _listen(self, applications: Applications, timeout_s: float = _LISTEN_S) -> None:
        for message in applications.hear(timeout_s):
            self._take(message)

    def _take(self, message: Message) -> None:
        if isinstance(message, Answers):
            self._tally.take(message)
        elif isinstance(message, Steps):
            self._steps = message
            self._longest_ns = max(self._longest_ns, message.longest_ns)


@contextlib.contextmanager
def _blamed_first(server: children.Child) -> Iterator[None]:
    """Tell that the server has ended, if it has, rather than what that did to the others."""
    try:
        yield
    except DemoFailed:
        time.sleep(_LISTEN_S)
        server.check()
        raise


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the demo as Ctrl-C does."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
