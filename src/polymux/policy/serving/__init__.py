"""Policies for requests with deadlines: one file each, pure functions of what waits and runs, and a time.

`interface` says what such a policy must do, `registry` finds one by its name.
"""
