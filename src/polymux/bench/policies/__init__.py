"""Policies live: the same open-loop load of real models under each of them, and what the simulator says about it.

`workload` makes and measures the models, `live` runs front ends, `generator` is the load's own process, `prediction`
simulates the same load, `benchmark` puts them together and has ``run``.
"""
