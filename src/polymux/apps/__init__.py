"""Applications of high-performance computing, written once for every device: they know lanes, not accelerators.

``application`` says what an application is, ``lane`` where its tasks go (a task queue, or a device called directly, in
``native_lane``), ``registry`` which applications there are; each has a file of its own. ``polymux bench apps`` runs all
of them through the server and without it; the scripts in ``examples/`` run one as a user would.
"""
