"""How long the way back of an answer takes, as learned."""

from __future__ import annotations

from polymux.sched.serving.reply_time import ReplyTime

MS = 1_000_000


def test_the_reserve_follows_the_longest_way_back_and_forgets_it() -> None:
    reply = ReplyTime()
    assert reply.reserve_ns == MS
    reply.note(20 * MS)
    assert reply.reserve_ns == 40 * MS
    for _ in range(2000):
        reply.note(-5)
    assert reply.reserve_ns == MS
