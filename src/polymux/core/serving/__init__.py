"""Models served under deadlines: what they are, what happens to them, what is decided about them; as values.

`model` holds models, devices and requests, `event` what happened, `decision` what to do, `view` what a policy sees.
The words are those of `polymux.core`; here the unit of work is a request, which waits until a batch takes it.
"""
