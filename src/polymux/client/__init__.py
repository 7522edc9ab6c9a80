"""What an application links: connect, allocate, submit, wait.

`polymux.connect()` makes a `Client`; that makes `Queue` s; those make `Buffer` s and issue `Task` s.
"""

from polymux.client.buffer import Buffer
from polymux.client.client import Client
from polymux.client.queue import Queue
from polymux.segment import Task

__all__ = ["Buffer", "Client", "Queue", "Task"]
