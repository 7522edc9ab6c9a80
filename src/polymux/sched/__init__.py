"""The state machine: fold an event in, ask the policy, check its decisions, return them.

`engine` is the way in; `state` holds what it knows, `check` refuses decisions that must not be carried out,
`recording` and `replay` turn a run into lines of text and back.
"""
