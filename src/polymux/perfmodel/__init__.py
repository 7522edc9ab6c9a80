"""Arithmetic on measurements: latency surfaces and what follows from them. Pure.

`surface` holds how long a batch takes over (share, batch).
"""
