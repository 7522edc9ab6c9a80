"""The applications that send requests: what they have in common, and the process in which each runs."""

from __future__ import annotations

import contextlib
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib import import_module
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Event

from polymux.core.errors import PolymuxError
from polymux.demo.http_models import CheckedModels, HttpModels, LostAnswer
from polymux.demo.inference import Infer, Reference
from polymux.demo.message import Ended, Failed, Finding, Prepared, Teller

__all__ = ["WORKLOADS", "Stop", "Workload", "run_workload"]

WORKLOADS = {
    "pictures": "polymux.demo.pictures:Pictures",
    "files": "polymux.demo.files:Files",
    "voices": "polymux.demo.voices:Voices",
}
"""Application -> its class."""

_PAUSE_AFTER_LOSS_S = 0.2

Stop = Callable[[float], bool]
"""Waits so many seconds at most; True as soon as the load is to end."""


class Workload(ABC):
    """An application that uses models: where its inputs come from, and what it makes of the answers.

    Attributes
    ----------
    models : tuple of str
        Models that it uses.
    clients : int
        Clients that work at the same time.
    """

    models: tuple[str, ...]
    clients: int

    @abstractmethod
    def prepare(self, reference: Reference) -> None:
        """Load the inputs and run each once against the reference, so that its answers are known."""

    @abstractmethod
    def work(self, client: int, infer: Infer, stop: Stop, note: Callable[[str], None]) -> None:
        """Send requests until it is time to stop; called in a thread for each client.

        Raises
        ------
        LostAnswer
            When a request is lost; it is called again then.
        """

    @abstractmethod
    def findings(self) -> tuple[Finding, ...]:
        """Return how the results look beside what people say is right."""


def run_workload(application: str, end: Event, connection: Connection) -> None:
    """Run an application; the main function of its process.

    Parameters
    ----------
    application : str
        A key of `WORKLOADS`.
    end : Event
        Set when the load is to end.
    connection : Connection
        Where its messages go, and from where the front end's address, ``HOST:PORT``, comes when the load is to begin.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started it tells when to end
    teller = Teller(application, connection)
    try:
        module, _, name = WORKLOADS[application].partition(":")
        workload: Workload = getattr(import_module(module), name)()
        reference = Reference(workload.models)
        workload.prepare(reference)
        teller.tell(Prepared(application))
        address: str = connection.recv()
        _run_clients(workload, address, reference, end, teller)
        teller.tell(Ended(application, workload.findings()))
    except EOFError:  # the process that started it is gone
        pass
    except (PolymuxError, OSError) as error:
        teller.tell(Failed(application, str(error)))
    finally:
        connection.close()


def _run_clients(workload: Workload, address: str, reference: Reference, end: Event, teller: Teller) -> None:
    def run(client: int) -> None:
        models = HttpModels(address)  # each thread has one of its own
        infer = CheckedModels(models, reference, teller)
        with contextlib.closing(models):
            while not end.is_set():
                try:
                    workload.work(client, infer, end.wait, teller.note)
                except LostAnswer:  # reported already; the next one may get through
                    end.wait(_PAUSE_AFTER_LOSS_S)

    threads = [threading.Thread(target=run, args=(client,)) for client in range(workload.clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
