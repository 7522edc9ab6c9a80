"""Policies for jobs: who holds each device, when it is taken away and how; one file each.

`interface` is what the engine of jobs expects, `registry` finds a policy by name. `levels` chooses how a device is
taken away, `fair_queue` whose turn it is, `occupancy` knows how much of a device tasks of queues take.
"""
