"""Arithmetic on measurements: latency surfaces and what follows from them. Pure.

`surface` and `flat_knee` hold how long a batch takes over (share, batch); `tables` has models and devices from public
measurements and data sheets. `knee` and `efficacy` find the share and batch at which a model runs well.
`surface_fit` makes a surface of measured points and tells its error. `operations` counts what the operators of a graph
take, `roofline` says what bounds them. `capacity` says how many devices a set of models needs.
"""
