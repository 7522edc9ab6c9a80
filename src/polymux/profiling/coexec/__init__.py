"""Measures how fast devices compute chunks of operations that they are to compute together, and stores models of it.

`records` says what is wanted and was found, `shapes` what is measured, `work` runs it on a stream, `timing` repeats
what was disturbed, `link` measures copies, and `calibrate` chooses the method of each device, fits the models and
stores them.
"""
