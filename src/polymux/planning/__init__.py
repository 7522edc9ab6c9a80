"""What devices can do for models, before they do: workloads simulated and planned, reported and drawn.

`workload` reads a workload file (its parts: `workload_devices`, `workload_models`, `workload_arrivals`, `trace_file`),
`run` simulates it under policies, `report` writes tables and JSON, `gantt` and `perfetto` draw the batches.

`plan` says how many devices a workload needs: `demands` reads what it asks, `plan_search` packs, checks (`plan_check`)
and repairs, `plan_report` and `plan_chart` show it. `cluster` places models on more devices than one engine schedules.
"""
