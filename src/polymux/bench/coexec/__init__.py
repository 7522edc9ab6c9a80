"""The benchmark of co-execution: products and convolutions on two units of different kinds, against each alone.

``shapes`` says what is computed, ``machine`` where, ``cell`` measures one row, ``loaded`` one with a core taken away
for half of the run, ``benchmark`` puts them together.
"""
