"""Arithmetic on measurements: latency surfaces and what follows from them. Pure.

- How long a batch takes over (share, batch): `surface` (a table), `flat_knee` (the assumption of the D-STACK paper),
  `analytical` (its model of a DNN), `surface_fit` (from measured points, with the error).
- Where a model runs well: `knee` (three definitions), `efficacy` (the optimum under deadline and rate).
- Why: `operations` counts what the operators of a graph take, `roofline` says what bounds them.
- What else counts: `interference` between models on one device, `energy`.
- `capacity` says how many devices a set of models needs, `fair_bound` how much of the time models can run side by side.
- `tables` has models and devices from public measurements and data sheets, which lie in `data`.

docs/performance-models.md tells what each is good for and how far it can be trusted.
"""
