"""One operation on several units while it runs: who computes which chunk next. Pure.

`dispatcher` hands a plan's chunks to its units, lets a unit that is early take over from one that is late, and gives
what a failed unit leaves to the others. The server's clock and the simulator's drive it alike.
"""
