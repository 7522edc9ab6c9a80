"""The scheduling of jobs: a third state machine, which says who holds each device and when it is taken away.

`engine` folds events in, asks the policy, checks its decisions and applies them; `patience` says what follows when a
job does not give way. The server drives it live, `sim.jobs` in virtual time.
"""
