"""Policies: one file each, pure functions of a snapshot and a time that return decisions.

`interface` says what a policy must do, `assignment` holds what all policies that bind queues to streams have in
common, `registry` finds a policy by its name.
"""
