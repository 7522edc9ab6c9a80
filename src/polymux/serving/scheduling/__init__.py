"""Requests under deadlines: the live driver of the engine of requests, in the front end's event loop.

A request goes through these files in order: ``runner`` (what the front end calls), ``room`` (whether there is place for
it), ``scheduler`` (arrivals into the engine, its decisions out), ``lanes`` (queues on the streams of a model's shares),
``merging`` (many requests, one task, and their answers apart again). ``settings`` reads what the operator wants of each
model, ``machine`` which streams there are, ``loading`` brings models here, ``statistics`` counts.
"""
