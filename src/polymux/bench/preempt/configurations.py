"""The ways in which inference and training share the cores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Threads = Literal["defaults", "spinning", "sleeping", "running", "server"]
"""How onnxruntime's threads wait for work: as the library does by itself, spinning, asleep, or spinning while a request
is computed and asleep between requests, with one thread per core; or it computes in a server of Polymux."""

Boundary = Literal["", "step", "subgraph", "lease"]
"""Where training looks whether it has to wait: nowhere, after each step, between the network's parts, or as
`polymux.training` does."""


@dataclass(frozen=True, slots=True)
class TrainerKind:
    """A training process.

    Attributes
    ----------
    environment : mapping
        Variables that it is started with.
    threads : bool
        Whether it is told to have one thread per core; otherwise it has the library's number.
    idle : bool
        Whether it runs under SCHED_IDLE.
    """

    environment: Mapping[str, str]
    threads: bool = True
    idle: bool = False


_SLEEPING = {"OMP_WAIT_POLICY": "PASSIVE"}
TRAINERS = {
    "defaults": TrainerKind({}, threads=False),
    "sleeping": TrainerKind(_SLEEPING),
    "idle": TrainerKind(_SLEEPING, idle=True),
    "leased": TrainerKind(_SLEEPING),
}
"""By name: with the library's defaults, whose threads spin; with threads that sleep while they wait; those under
SCHED_IDLE, and those under a lease of the server's."""


@dataclass(frozen=True, slots=True)
class Configuration:
    """A way to share the cores.

    Attributes
    ----------
    name : str
    threads : Threads, optional
        Of inference; None: there is none.
    trainer : str, optional
        A key of `TRAINERS`; None: there is no training.
    boundary : Boundary
        Where training gives way.
    """

    name: str
    threads: Threads | None
    trainer: str | None
    boundary: Boundary = ""


TRAIN_ALONE = ("train_alone", "train_alone_defaults")
ALONE = ("alone_spinning", "alone_sleeping")

CONFIGURATIONS = (
    Configuration("train_alone", None, "sleeping"),
    Configuration("train_alone_defaults", None, "defaults"),
    Configuration("alone_spinning", "spinning", None),
    Configuration("alone_sleeping", "sleeping", None),
    Configuration("unmanaged", "defaults", "defaults"),
    Configuration("unmanaged_no_spin", "sleeping", "sleeping"),
    Configuration("sched_idle", "sleeping", "idle"),
    Configuration("sched_idle_run_spin", "running", "idle"),
    Configuration("step", "running", "sleeping", "step"),
    Configuration("subgraph", "running", "sleeping", "subgraph"),
    Configuration("polymux", "server", "leased", "lease"),
)
"""In the order of the first round; each further round begins one later."""

MODELS = ("squeezenet", "resnet50", "read_text")
LOADS = (0.15, 0.4)
"""What is measured: each model at each load."""
