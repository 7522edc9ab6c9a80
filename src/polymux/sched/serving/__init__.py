"""The scheduling of requests: a second state machine beside that of queues, driven by a front end or a simulation.

`engine` folds events in, asks the policy, checks its decisions and applies them; `state` holds what it knows.
`recording` writes each step as a line of text, `replay` runs them through a fresh engine.
"""
