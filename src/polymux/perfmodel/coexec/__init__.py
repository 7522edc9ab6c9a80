"""One operation on several units at once: predicted, optimised, adapted. Pure.

- Predict: `features` of an operation, `compute` models of how long a unit takes, fitted by `compute_fit` from a `law`
  and a `correction`; `link` for copies; together a `unit`. `precision` says what fewer bits cost in accuracy.
- Optimise: a `problem` (what is split, and what each part of it costs) and an objective give a `split`, by `optimize`:
  in closed form (`balance` where copies do not meet, `chains` where they share a bus), or by mixed-integer programming.
- Adapt: what can be run, by `adapt`: tiles, chunks with small last ones, pieces that fit into a device's memory.
- `planner` keeps the units of an operation, plans and cached plans, and learns from what ran.

docs/performance-models.md tells how the models are made and how far they can be trusted.
"""
