"""Jobs: work that uses a device by itself, run after run, under a lease; as values.

`model` holds jobs, devices and the ways to take a device away, `event` what happened, `decision` what to do, `view`
what a policy sees. A *run* is one iteration of a job (a training step, a batch), a *boundary* a place in it at which it
can give way. Tasks of queues are not jobs: here they only appear as somebody who wants a device.
"""
