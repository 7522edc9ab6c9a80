"""Measures models on the shares of devices, as a client, and stores what it finds.

`model` makes a model ready, `target` is a device with its shares, `repeats` times one place until its median is known
well enough (`confidence`), `run` does a whole grid, `roof` the device itself, `together` models side by side.
`summary` and `picture` tell what was found. `private_server` is the server that is measured on, `samples` are real
models from packages.
"""
