"""Random tasks, failures, frees and ends of applications against a model that only knows each buffer's content."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from polymux.server.placement import READ, WRITE, Lease, Placement
from polymux.server.placing import DoesNotFitError
from polymux.server.transfer import CopyFailedError
from tests.unit.server.fakes import Application, Machine

SIZES = [1, 3, 5, 8, 13, 21]
CAPACITIES = (24, 40)


class ResidencyModel(RuleBasedStateMachine):
    """Leases are held for some steps, so that buffers are pinned while others are wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.machine = Machine(*CAPACITIES)
        self.apps = [Application(session, list(SIZES)) for session in (1, 2)]
        self.next_session = 3
        self.content = [[0] * len(SIZES) for _ in self.apps]
        self.leases: list[tuple[int, int, list[int], Lease]] = []
        self.next_value = 1

    @initialize(addressable=st.integers(0, len(CAPACITIES)), peers=st.booleans())
    def choose_ways(self, addressable: int, peers: bool) -> None:
        if addressable:
            self.machine.devices[addressable].addressable = True
        if peers:
            self.machine.devices[2].peers = [self.machine.devices[1]]

    @rule(
        app=st.integers(0, 1),
        location=st.integers(0, len(CAPACITIES)),
        slots=st.lists(st.integers(0, len(SIZES) - 1), min_size=1, max_size=3),
        access=st.sampled_from([READ, WRITE, READ | WRITE]),
        failures=st.sampled_from([0, 0, 0, 1]),
        refusals=st.sampled_from([0, 0, 0, 1]),
    )
    def begin_task(
        self, app: int, location: int, slots: list[int], access: int, failures: int, refusals: int
    ) -> None:
        wants = [self.apps[app].want(slot, access) for slot in slots]
        for device in self.machine.devices.values():
            device.failures, device.refusals = failures, refusals
        try:
            if self._would_wait(app, location, slots):
                return
            lease = self.machine.residency.acquire(location, wants)
        except (DoesNotFitError, CopyFailedError):
            return
        finally:
            for device in self.machine.devices.values():
                device.failures = device.refusals = 0
        self.leases.append((app, location, sorted(set(slots)), lease))
        for slot in set(slots):
            bytes_there = self.apps[app].content(slot) if location == 0 else lease.memory(slot)
            if access & READ:
                assert set(bytes_there.tolist()) == {self.content[app][slot]}
            if access & WRITE:
                bytes_there[:] = self.content[app][slot] = self._value()

    @rule(
        app=st.integers(0, 1),
        location=st.integers(0, len(CAPACITIES)),
        slot=st.integers(0, len(SIZES) - 1),
        access=st.sampled_from([0, READ]),
        lent=st.booleans(),
        failures=st.sampled_from([0, 0, 0, 1]),
        refusals=st.sampled_from([0, 0, 1, 2]),
    )
    def bring_ahead(
        self, app: int, location: int, slot: int, access: int, lent: bool, failures: int, refusals: int
    ) -> None:
        want = self.apps[app].want(slot, access)
        residency = self.machine.residency
        for device in self.machine.devices.values():
            device.failures, device.refusals = failures, refusals
        try:
            if lent:
                residency.lend([want], location)
            residency.bring_ahead(location, want, "q")
        except (DoesNotFitError, CopyFailedError):
            pass
        finally:
            residency.lend([want], 0)
            for device in self.machine.devices.values():
                device.failures = device.refusals = 0

    @rule()
    def hold_nothing_any_more(self) -> None:
        self.machine.residency.release_held("q")

    @rule(index=st.integers(0, 20))
    def end_task(self, index: int) -> None:
        if self.leases:
            self.machine.residency.release(self.leases.pop(index % len(self.leases))[3])

    @rule(app=st.integers(0, 1), slot=st.integers(0, len(SIZES) - 1), told=st.booleans())
    def free_and_allocate_again(self, app: int, slot: int, told: bool) -> None:
        if any(app == other and slot in slots for other, _, slots, _ in self.leases):
            return  # the client frees a buffer when its tasks are done
        application = self.apps[app]
        home = application.home(slot)
        application.segment.generations[slot] += 1
        if told:
            self.machine.residency.forget(home.key, home.generation)
        application.content(slot)[:] = self.content[app][slot] = self._value()

    @rule(app=st.integers(0, 1))
    def end_application(self, app: int) -> None:
        self.machine.residency.forget_owner(self.apps[app].owner)
        for entry in [entry for entry in self.leases if entry[0] == app]:
            self.leases.remove(entry)
            self.machine.residency.release(entry[3])
        self.apps[app] = Application(self.next_session, list(SIZES))
        self.content[app] = [0] * len(SIZES)
        self.next_session += 1

    @invariant()
    def counters_equal_the_sums_of_what_is_there(self) -> None:
        ledger = self.machine.residency._ledger
        for location, device in self.machine.devices.items():
            store = ledger.stores[location]
            assert store.used_nbytes == sum(copy.placement.nbytes for copy in store.valid.values())
            assert store.kept_nbytes == sum(copy.placement.nbytes for copy in store.stale.values())
            assert store.used_nbytes + store.kept_nbytes == device.used_nbytes <= store.capacity_nbytes
            assert store.reserved_nbytes == 0

    @invariant()
    def nothing_is_marked_between_steps(self) -> None:
        copies = [copy for placement in self._placements() for copy in placement.copies.values()]
        pinned = sum(len(lease.placements) for _, location, _, lease in self.leases if location != 0)
        assert not any(copy.busy for copy in copies)
        assert sum(copy.pins for copy in copies) == pinned
        assert not any(p.transfers or p.read_by_copies or p.lent for p in self._placements())
        writing = sum(
            bool(want.access & WRITE) for _, at, _, lease in self.leases for want in lease.wants if at != 0
        )
        assert sum(p.writers for p in self._placements()) == writing

    @invariant()
    def the_mirrored_locations_are_true(self) -> None:
        for placement in self.machine.residency._ledger.placements.values():
            for home in placement.homes:
                told = home.memory.locations.get((home.slot, home.generation), 0)  # type: ignore[attr-defined]
                assert told == placement.where
                away = any(copy.valid for at, copy in placement.copies.items() if at != 0)
                assert (told != 0) == away

    @invariant()
    def every_valid_copy_has_the_content(self) -> None:
        for app, content in zip(self.apps, self.content, strict=True):
            for slot, value in enumerate(content):
                placement = self.machine.residency._ledger.placements.get(app.home(slot).key)
                if placement is None:
                    assert set(app.content(slot).tolist()) == {value}
                elif app.home(slot) in placement.homes:
                    assert any(copy.valid for copy in placement.copies.values())
                    for at, copy in placement.copies.items():
                        if copy.valid:
                            assert set((app.content(slot) if at == 0 else copy.memory).tolist()) == {value}

    def _placements(self) -> list[Placement]:
        ledger = self.machine.residency._ledger
        everything = list(ledger.placements.values())
        everything += [copy.placement for store in ledger.stores.values() for copy in store.copies()]
        return list({id(placement): placement for placement in everything}.values())

    def _would_wait(self, app: int, location: int, slots: list[int]) -> bool:
        """Whether a task would have to wait for one of the leases that this single thread holds."""
        residency = self.machine.residency
        wants = {slot: self.apps[app].want(slot) for slot in slots}
        for evict_all in (False, True):  # a refusal makes it plan a second time
            if residency._ledger.choose(list(wants.values()), location, evict_all=evict_all) is None:
                return True
        return False

    def _value(self) -> int:
        self.next_value = self.next_value % 255 + 1
        return self.next_value


ResidencyModel.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestResidency = ResidencyModel.TestCase
