"""The server: threads, wall clock, sessions and devices around the scheduling engine.

`polymux.server.runtime.Runtime` is the whole of it. Nothing is imported here, because worker processes import their
module from this package and should start fast.
"""
