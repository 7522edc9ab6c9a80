"""One operation on several devices in virtual time: planned, dispatched and corrected by what does so live.

`scenario` is what is simulated, `simulation` plays it out, `bus` has the copies, `ideal` says what would be possible,
`outcome` what came of it. The same scenario has the same outcome, to the nanosecond.
"""

from polymux.sim.coexec.ideal import ideal_s
from polymux.sim.coexec.outcome import CoexecOutcome, Span
from polymux.sim.coexec.scenario import CoexecScenario, Failure, SpeedChange
from polymux.sim.coexec.simulation import simulate

__all__ = ["CoexecOutcome", "CoexecScenario", "Failure", "Span", "SpeedChange", "ideal_s", "simulate"]
