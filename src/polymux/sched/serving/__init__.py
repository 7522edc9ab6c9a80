"""The scheduling of requests: a second state machine beside that of queues, driven by a front end or a simulation.

`engine` folds events in, asks the policy, checks its decisions and applies them; `state` holds what it knows. Its runs
are recorded and replayed by `polymux.sched.recording` and `polymux.sched.replay`, as those of queues are.
"""
