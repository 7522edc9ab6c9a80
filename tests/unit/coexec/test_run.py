"""What pieces took, as seen from an application that looks late."""

from __future__ import annotations

from polymux.coexec.run import shared_out


def test_pieces_that_are_found_to_have_ended_together_share_the_time_as_predicted() -> None:
    assert shared_out(1000, 5000, [3000, 1000]) == [4000, 5000]
    assert shared_out(1000, 5000, [0]) == [5000]
    assert shared_out(0, 10, [0, 0]) == [5, 10], "a prediction of nothing divides evenly"
