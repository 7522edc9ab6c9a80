"""Our own policy for requests with deadlines: reservations in a calendar of each device, planned on the whole surface.

`policy` answers the engine. A `lane` holds what is known of one model: how fast requests come, how long batches take
(`pace` corrects the surface by what was measured), and its reserved batches (`slot`). A `board` is a device with its
`calendar` of free units over time. `planning` finds a place for a batch there, `search` moves other reservations when
there is none, `dispatch` chooses what starts now and on how many units, `fairness` divides devices that are too small.
"""
