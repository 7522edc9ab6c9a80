"""Measures models on the shares of devices, as a client, and stores what it finds.

`samples` are real models from packages.
"""
