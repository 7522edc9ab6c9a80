"""Prometheus metrics: what a server tells about itself as metric families, and the endpoint that serves them.

Nothing here knows the server; its status comes as data, from the same process or over a connection.
"""
