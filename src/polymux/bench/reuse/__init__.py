"""Input stages beside the accelerator, and shared by models: against jobs that take turns.

`pictures` makes the input files, `jobs` runs models in this process, `served` runs them behind HTTP,
`processes` trains in processes of their own, `benchmark` puts them together and has ``run``.
"""
