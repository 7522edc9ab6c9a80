"""What an application links: connect, allocate, submit, wait.

`polymux.connect()` makes a `Client`; that makes `Queue` s, which make `Buffer` s and issue `Task` s, and `Lease` s.
"""

from polymux.client.buffer import Buffer
from polymux.client.client import Client
from polymux.client.lease import Lease
from polymux.client.queue import Queue
from polymux.segment import Task

__all__ = ["Buffer", "Client", "Lease", "Queue", "Task"]
