"""The values that every layer exchanges: ids, specs, tasks, events, decisions, errors.

Everything here is immutable, compares by value and does no I/O; only NumPy is imported, for its dtypes.
Import from the file that holds the name (``from polymux.core.event import QueueOpened``).
"""
