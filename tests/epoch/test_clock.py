"""The clock alone, with walks that are plain objects: no torch, no sampler, no losses."""

import warnings
from dataclasses import dataclass
from functools import partial

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from infobatch.epoch.clock import Clock, Complete, Idle, Offered, Spent, Training

TWO_LOOPS = r"^A second iterator of this sampler asks for samples in the middle of epoch "
STALE = r"^An iterator of an epoch that is over asks this sampler for more samples"
BEFORE_ITERATING = r"update\(\) was called before the sampler issued a sample of epoch"


@dataclass(eq=False)
class FakeWalk:
    """What a clock may know about a walk, set by hand; counted in batches."""

    deliverable: int | None = 3
    held: bool = True
    ended: bool = False
    issued: int = 1
    received: int = 1
    updated: int = 0
    has_begun: bool = True
    epoch: int | None = None  # the one that was handed to it, for the test to compare with

    @property
    def alive(self):
        return self.has_begun and self.held and not self.ended and not self.received_all

    @property
    def exhausted(self):
        return self.deliverable is not None and self.issued >= self.deliverable

    @property
    def received_all(self):
        return self.deliverable is not None and self.received >= self.deliverable > 0

    @property
    def ran_through(self):
        return self.received_all


NO_WALK = FakeWalk(has_begun=False)


def clock_in(phase, walk=NO_WALK, *, finished=-1):
    """A clock in some phase, and the epochs that it closes."""
    closed = []
    clock = Clock(lambda: closed.append(clock.epoch), lambda: walk)
    clock.phase, clock.finished = phase, finished
    return clock, closed


def resumed_at(epoch, *, finished=-1):
    """A clock that has loaded a checkpoint, and heard nothing from its caller since."""
    clock = clock_in(Idle(0))[0]
    clock.load(epoch, finished)
    return clock


def updated(clock, *, by_index=False):
    """An update as the course reports it: expected, then recorded."""
    clock.check_update("update()", by_index=by_index)
    clock.update()


# The first index of a new iterator.


@pytest.mark.parametrize(
    ("phase", "walk"),
    [
        (Idle(4), NO_WALK),
        (Idle(4, resumed=True), NO_WALK),
        (Offered(4), FakeWalk()),
        (Offered(4), FakeWalk(held=False)),
    ],
    ids=repr,
)
def test_before_an_update_any_iterator_is_offered_the_epoch(phase, walk):
    clock, closed = clock_in(phase, walk)
    assert clock.begin()
    assert clock.phase == Offered(4)
    updated(clock)
    assert clock.phase == Training(4)
    assert closed == []


def test_an_epoch_of_less_than_a_batch_that_is_dropped_is_over_without_an_update():
    clock, closed = clock_in(Offered(4), FakeWalk(deliverable=0, issued=0))
    assert clock.is_over
    assert clock.begin()
    assert clock.phase == Offered(5)
    assert clock.finished == 4
    assert closed == [4]


@pytest.mark.parametrize("old", [FakeWalk(held=False), FakeWalk(ended=True), NO_WALK], ids=repr)
def test_after_the_loop_of_an_epoch_the_next_one_begins(old):
    clock, closed = clock_in(Training(4), old)
    assert clock.begin()
    assert clock.phase == Offered(5)
    assert closed == [4]
    assert clock.finished == (4 if old.ended else -1)


def test_in_the_middle_of_an_epoch_a_second_iterator_raises():
    clock, closed = clock_in(Training(4), FakeWalk())
    with pytest.raises(RuntimeError, match=TWO_LOOPS + "4, while the first is still in use"):
        clock.begin()
    assert clock.phase == Training(4)
    assert closed == [], "nothing is lost"


@pytest.mark.parametrize("looks", [1, 3])
def test_an_iterator_that_takes_indices_while_it_is_created_may_replace_the_other(looks):
    old = FakeWalk(received=2)
    clock, closed = clock_in(Training(4), old)
    for _ in range(looks):
        assert clock.begin(at_once=True)
    assert clock.phase == Offered(5, replaced=old)
    assert closed == [4]
    assert clock.finished == -1, "it did not come to its end"
    for received in (2, 3):  # at its end it has continued since then
        old.received = received
        with pytest.raises(RuntimeError, match=TWO_LOOPS + "4"):
            updated(clock)
    with pytest.raises(RuntimeError, match=TWO_LOOPS + "4"):
        clock.check_turn(old, of_this_epoch=False)
    old.received, old.held = 2, False
    updated(clock)
    assert clock.phase == Training(5)


def test_a_replaced_iterator_is_left_by_naming_the_next_epoch():
    clock, _ = clock_in(Offered(5, replaced=FakeWalk()))
    clock.set_epoch(5)
    updated(clock)
    assert clock.phase == Training(5)


def test_after_the_last_update_the_next_epoch_begins_and_nothing_is_closed_twice():
    clock, closed = clock_in(Complete(4), FakeWalk(), finished=4)
    assert clock.begin()
    assert clock.phase == Offered(5)
    assert closed == []


def test_nothing_is_left_of_a_spent_epoch():
    clock, closed = clock_in(Spent(5), finished=4)
    assert not clock.begin()
    assert clock.phase == Idle(5, resumed=True)
    assert closed == []
    assert clock.begin(), "only the spent epoch yields nothing"
    assert clock.phase == Offered(5)


# A later index of an earlier iterator.


@pytest.mark.parametrize(
    ("phase", "walk", "error"),
    [
        (Offered(4), FakeWalk(), None),
        (Training(4), FakeWalk(held=False), None),
        (Training(4), FakeWalk(), TWO_LOOPS + "4"),
        (Complete(4), FakeWalk(held=False), STALE),
    ],
    ids=repr,
)
def test_the_loop_that_asks_again_after_a_look_takes_its_epoch_back(phase, walk, error):
    clock, _ = clock_in(phase, walk)
    if error is None:
        clock.check_turn(FakeWalk(), of_this_epoch=True)
    else:
        with pytest.raises(RuntimeError, match=error):
            clock.check_turn(FakeWalk(), of_this_epoch=True)
    with pytest.raises(RuntimeError, match=STALE):
        clock.check_turn(FakeWalk(), of_this_epoch=False)
    assert clock.phase == phase


# Updates.


@pytest.mark.parametrize("phase", [Idle(4), Idle(4, resumed=True), Spent(4)], ids=repr)
def test_an_update_before_an_iterator(phase):
    clock, _ = clock_in(phase)
    with pytest.raises(RuntimeError, match=BEFORE_ITERATING + " 4"):
        updated(clock)
    assert clock.phase == phase
    updated(clock, by_index=True)
    assert clock.phase == Training(4), "the batch tells which samples it has"


def test_the_last_update():
    clock, closed = clock_in(Training(4), FakeWalk())
    assert not clock.is_over
    clock.complete()
    assert clock.phase == Complete(4)
    assert clock.finished == 4
    assert clock.is_over
    assert closed == [], "whoever calls complete() has closed the epoch"


# set_epoch.


STAY = [
    (Idle(4), NO_WALK),
    (Idle(4, resumed=True), NO_WALK),
    (Offered(4), FakeWalk()),
    (Offered(4), FakeWalk(held=False)),
    (Training(4), FakeWalk()),
    (Training(4), NO_WALK),
    (Training(4), FakeWalk(held=False, issued=3)),  # its last updates may still come
    (Complete(4), FakeWalk()),  # still in the loop's body
]


@pytest.mark.parametrize(("phase", "walk"), STAY, ids=repr)
def test_the_same_epoch_again_changes_nothing(phase, walk):
    clock, closed = clock_in(phase, walk)
    clock.set_epoch(4)
    clock.set_epoch(4)
    assert clock.phase == phase
    assert closed == []


@pytest.mark.parametrize(
    ("phase", "walk", "finished", "closes"),
    [
        (Training(4), FakeWalk(held=False), -1, [4]),  # broken off
        (Training(4), FakeWalk(held=False, ended=True), 4, [4]),
        (Complete(4), FakeWalk(held=False), 4, []),
    ],
    ids=repr,
)
def test_the_same_epoch_once_more_after_its_loop_was_left(phase, walk, finished, closes):
    clock, closed = clock_in(phase, walk, finished=4 if isinstance(phase, Complete) else -1)
    clock.set_epoch(4)
    assert clock.phase == Idle(4)
    assert clock.finished == finished
    assert closed == closes


def test_a_spent_epoch_s_successor():
    clock, closed = clock_in(Spent(5), finished=4)
    clock.set_epoch(5)
    assert clock.phase == Idle(5, resumed=True)
    assert closed == []


@pytest.mark.parametrize("epoch", [0, 3, 5, 9])
@pytest.mark.parametrize(("phase", "walk"), [STAY[0], *STAY[2:]], ids=repr)
def test_another_epoch(phase, walk, epoch):
    clock, closed = clock_in(phase, walk)
    clock.set_epoch(epoch)
    assert clock.phase == Idle(epoch)
    assert closed == ([] if isinstance(phase, Complete) else [4])


@pytest.mark.parametrize("phase", [Idle(5, resumed=True), Spent(5)], ids=repr)
def test_a_resumed_loop_may_ask_for_the_epoch_whose_end_was_loaded(phase):
    clock, closed = clock_in(phase, finished=4)
    clock.set_epoch(4)
    assert clock.phase == Spent(5)
    assert closed == []
    clock.set_epoch(3)
    assert clock.phase == Idle(3), "any other epoch is meant as it is said"


def test_without_a_resume_a_finished_epoch_is_trained_once_more():
    clock, _ = clock_in(Idle(5), finished=4)
    clock.set_epoch(4)
    assert clock.phase == Idle(4)


# Reading.


@pytest.mark.parametrize(
    ("phase", "walk", "over", "repeats"),
    [
        (Idle(4), NO_WALK, False, False),
        (Spent(4), NO_WALK, False, False),
        (Offered(4), FakeWalk(issued=3, held=False), False, False),
        (Offered(4), FakeWalk(issued=0, deliverable=None), False, False),
        (Training(4), FakeWalk(issued=3), False, False),
        (Training(4), FakeWalk(issued=2, held=False), False, True),
        (Training(4), FakeWalk(issued=3, held=False), False, False),  # updates are still to come
        (Training(4), FakeWalk(ended=True), True, True),
        (Training(4), NO_WALK, False, False),
        (Complete(4), FakeWalk(), True, False),
        (Complete(4), FakeWalk(held=False), True, True),
    ],
    ids=repr,
)
def test_what_a_checkpoint_reads(phase, walk, over, repeats):
    clock, closed = clock_in(phase, walk)
    assert clock.is_over is over
    assert clock.would_repeat is repeats
    assert clock.epoch == 4
    assert clock.phase is phase
    assert closed == []


@pytest.mark.parametrize(("phase", "walk"), [*STAY, (Spent(4), NO_WALK)], ids=repr)
def test_a_checkpoint_leads_from_anywhere_to_the_epoch_that_it_names(phase, walk):
    clock, closed = clock_in(phase, walk)
    clock.load(7, 6)
    assert clock.phase == Idle(7, resumed=True)
    assert clock.finished == 6
    assert closed == [], "what was under way is forgotten"


# An epoch without updates.


NO_UPDATE = (
    r"^The loader was iterated to its end in epoch 4 without a single update\(\), so nothing is known "
    r"about its samples and the epoch does not count\. Pass the losses of each batch to "
    r"train_data\.update\(\); to only read the data, use a loader without this sampler"
)


@pytest.mark.parametrize("named", [False, True])
def test_a_loop_that_never_updates_causes_a_warning_at_the_next(named):
    clock, _ = clock_in(Offered(4), FakeWalk(issued=3, received=3, held=False))
    clock.set_epoch(4)  # the same epoch: nothing has changed yet
    with pytest.warns(UserWarning, match=NO_UPDATE):
        clock.set_epoch(5) if named else clock.begin()
    assert clock.phase == (Idle(5) if named else Offered(4))


def test_a_look_at_a_few_batches_is_not_warned_about():
    clock, _ = clock_in(Offered(4), FakeWalk(issued=3, received=1, held=False))
    clock.begin()  # warnings are errors


# The caller's epoch numbers, which may begin at 0 again after a resume.


@given(said=st.integers(0, 50), current=st.integers(0, 50), counted=st.booleans())
def test_without_a_resume_the_caller_s_number_is_ours(said, current, counted):
    clock, _ = clock_in(Idle(current))
    assert clock.meant_by(said, counter=said if counted else None, in_mid_epoch=False) == said


@given(current=st.integers(1, 50), first=st.integers(0, 60), later=st.integers(0, 60))
def test_after_a_resume_an_earlier_number_is_the_start_of_a_new_count(current, first, later):
    meant_by = partial(resumed_at(current).meant_by, counter=None, in_mid_epoch=False)
    meant = meant_by(first)
    assert meant == (current if first < current else first)
    assert meant_by(later) - meant == later - first, "decided once"


@pytest.mark.parametrize(("in_mid_epoch", "meant"), [(False, 4), (True, 5)])
def test_the_end_that_was_loaded_is_meant_as_it_is_said(in_mid_epoch, meant):
    clock = resumed_at(5, finished=4)
    assert clock.meant_by(4, counter=None, in_mid_epoch=in_mid_epoch) == meant


@pytest.mark.parametrize("said", [0, 3, 8])
def test_a_loader_s_own_counter_always_begins_again(said):
    """Even a count that is ahead of ours, or that is exactly the end that was loaded."""
    clock = resumed_at(4, finished=3)
    assert clock.meant_by(said, counter=said, in_mid_epoch=False) == 4
    assert clock.meant_by(said + 1, counter=said + 1, in_mid_epoch=False) == 5


def test_a_counter_that_somebody_else_s_call_does_not_agree_with():
    assert resumed_at(4).meant_by(6, counter=0, in_mid_epoch=False) == 6


def test_training_that_continues_without_a_call_settles_the_count():
    clock = resumed_at(5)
    clock.begin()
    assert clock.meant_by(2, counter=None, in_mid_epoch=False) == 2


# Any sequence of events.


class Loops(RuleBasedStateMachine):
    """A user with several iterators at hand, and the epoch that each of them was handed.

    Around the clock is as little of the course as it needs: whose walk an epoch is, who closes it, and
    whether as many batches have been issued as are updated. Updates come from any iterator that is
    held and has received a batch of which nothing was reported; accepted ones must be of the clock's
    epoch.
    """

    def __init__(self):
        super().__init__()
        self.clock = Clock(self.close, lambda: self.current)
        self.current = NO_WALK  # the epoch's walk
        self.walks = []  # that may still deliver
        self.trained = []  # the epochs that were trained on, in order
        self.closed = []
        self.open = False  # the last of them is not closed yet
        self.saved = None

    def close(self):
        assert not isinstance(self.clock.phase, Complete), "it is closed already"
        if self.open:
            self.closed.append(self.clock.epoch)
            self.open = False
        current = self.current
        if current.exhausted and 0 < current.updated < current.deliverable:
            # A warning has said that updates of it are missing: it is not waited for.
            self.walks = [walk for walk in self.walks if walk is not current]

    def event(self, happens):
        """Let something happen that must not lead to an earlier epoch."""
        before = self.clock.epoch
        result = happens()
        assert self.clock.epoch >= before
        assert self.closed == self.trained[: len(self.closed)]
        return result

    @initialize(workers=st.booleans(), batches=st.integers(1, 5))
    def build_loader(self, workers, batches):
        self.workers, self.batches = workers, batches

    @precondition(lambda self: len(self.walks) < 3)
    @rule()
    def begin(self):
        before, current = self.clock.phase, self.current
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a loop without updates is tested above
                begins = self.event(lambda: self.clock.begin(at_once=self.workers))
        except RuntimeError:
            assert isinstance(before, Training)
            assert current.alive
            assert not self.workers
            assert self.clock.phase == before
            return
        if not begins:
            assert isinstance(before, Spent)
            assert self.clock.phase == Idle(before.epoch, resumed=True)
            return
        assert isinstance(self.clock.phase, Offered)
        if not isinstance(before, Training):  # the others have only looked at what they received
            for other in self.walks:
                other.updated = other.received
            # What workers have read to its end is never asked for again, which nothing could see.
            self.walks = [other for other in self.walks if not other.exhausted]
        self.current = FakeWalk(
            deliverable=self.batches,
            issued=min(1 + self.workers, self.batches),
            received=int(not self.workers),
            epoch=self.clock.epoch,
        )
        self.walks.append(self.current)

    @precondition(lambda self: self.walks)
    @rule(data=st.data())
    def ask(self, data):
        self.take(data.draw(st.sampled_from(self.walks)))

    @precondition(lambda self: self.walks)
    @rule(data=st.data())
    def report(self, data):
        self.update(data.draw(st.sampled_from(self.walks)))

    @precondition(lambda self: self.walks)
    @rule(batches=st.integers(1, 6))
    def train(self, batches):
        """The newest iterator's loop, for some steps."""
        walk = self.walks[-1]
        for _ in range(batches):
            self.update(walk)
            if walk in self.walks:
                self.take(walk)

    def take(self, walk):
        """Ask for another batch; only the current iterator may, or one that a look has replaced."""
        if walk.received_all:
            self.walks.remove(walk)
            return
        if not walk.exhausted:
            if walk is not self.current:
                try:
                    self.clock.check_turn(walk, of_this_epoch=walk.epoch == self.clock.epoch)
                except RuntimeError:
                    self.walks.remove(walk)
                    return
                assert walk.epoch == self.clock.epoch
                assert not isinstance(self.clock.phase, Complete), "nothing is left of it"
                walk.updated = self.current.updated
                self.current.updated = self.current.received  # it has only looked
                self.current = walk
            walk.issued += 1
        walk.received += 1

    def update(self, walk):
        if walk.updated >= walk.received:
            return
        before = self.clock.phase
        try:
            if not isinstance(before, Training):
                self.event(lambda: updated(self.clock))
        except RuntimeError:
            assert isinstance(before, Idle | Spent | Offered)
            return
        holder = self.current
        if holder.updated >= holder.issued:  # counting raises
            return
        assert walk.epoch == self.clock.epoch, "an update of another epoch"
        if isinstance(before, Complete):
            return
        if not self.open:
            self.trained.append(walk.epoch)
            self.open = True
        walk.updated = holder.updated = holder.updated + 1
        if holder.exhausted and holder.updated == holder.deliverable:
            self.close()
            self.clock.complete()
            assert self.clock.finished == walk.epoch

    @rule(what=st.sampled_from(["let go", "set_epoch", "read", "load"]), data=st.data())
    def do_something_else(self, what, data):
        """One rule for what is rarer than iterating and updating."""
        if what == "let go" and self.walks:
            walk = data.draw(st.sampled_from(self.walks))
            walk.held = False
            self.walks.remove(walk)
        elif what == "set_epoch":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # as in begin
                self.set_epoch(data.draw(st.sampled_from([0, 1, 1, -1, 3])))
        elif what == "read":
            self.read()
        elif what == "load" and self.saved is not None:
            self.load(asks_for_what_is_finished=data.draw(st.booleans()))

    def set_epoch(self, step):
        before = self.clock.phase
        epoch = max(before.epoch + step, 0)
        self.clock.set_epoch(epoch)
        assert self.clock.epoch == (before.epoch if isinstance(self.clock.phase, Spent) else epoch)
        if isinstance(self.clock.phase, Idle | Spent) and self.clock.phase != before:
            self.walks, self.current = [], NO_WALK  # the user's word that something else begins
        elif isinstance(before, Offered):
            self.clock.check_update("update()", by_index=False)  # as the error said
            self.walks = [walk for walk in self.walks if walk.epoch == epoch]

    def read(self):
        """The length, a checkpoint, a progress bar: nothing changes."""
        before = self.clock.phase
        over, epoch = self.clock.is_over, self.clock.epoch
        _ = self.clock.would_repeat, self.clock.resumed
        assert self.clock.phase is before
        self.saved = (epoch + 1, epoch) if over else (epoch, self.clock.finished)

    def load(self, asks_for_what_is_finished):
        epoch, finished = self.saved
        self.clock.load(epoch, finished)
        assert self.clock.phase == Idle(epoch, resumed=True)
        if self.open:
            self.trained.pop()  # forgotten: it will never be closed
        self.open, self.walks, self.current = False, [], NO_WALK
        if asks_for_what_is_finished and finished == epoch - 1 >= 0:
            self.clock.set_epoch(finished)
            assert self.clock.phase == Spent(epoch)

    @invariant()
    def every_epoch_that_was_trained_on_is_closed_once(self):
        assert self.closed == (self.trained[:-1] if self.open else self.trained)


Loops.TestCase.settings = settings(
    max_examples=300, stateful_step_count=40, phases=set(Phase) - {Phase.shrink}
)
test_no_sequence_of_events_assigns_an_update_to_another_epoch = Loops.TestCase
