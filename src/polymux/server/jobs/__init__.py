"""Jobs: work that uses a device by itself, in its own process, under a lease.

`driver` gives events to the engine of jobs and carries its decisions out; `process` stops and continues processes, and
`guard` sees to it that none stays stopped when the server ends; `door` keeps the tasks of a device's streams and its
jobs apart; `operations` is what applications ask for.
"""
