"""The clock alone, with loops that are plain objects: no torch, no sampler, no losses."""

import warnings
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from infobatch.epoch.clock import Ambiguous, Clock, Complete, Idle, Offered, Spent, Training

TWO_LOOPS = r"update\(\) cannot tell which of two iterators its batch is from"
BEFORE_ITERATING = r"update\(\) was called before the sampler issued a sample of epoch"


@dataclass(eq=False)
class FakeLoop:
    """What a clock may know about a loop, set by hand; counted in batches."""

    reads_ahead: bool = False
    deliverable: int | None = 3
    alive: bool = True
    ended: bool = False
    consumed: bool = False
    issued: int = 1
    updated: int = 0
    epoch: int | None = None  # the one that was handed to it, for the test to compare with

    @property
    def exhausted(self):
        return self.deliverable is not None and self.issued >= self.deliverable

    @property
    def waiting(self):
        return self.issued - self.updated

    def dropped_of(self, positions):
        return 0


def clock_in(phase, *, finished=-1):
    """A clock in some phase, and the epochs that it closes."""
    closed = []
    clock = Clock(lambda: closed.append(clock.epoch))
    clock.phase, clock.finished = phase, finished
    return clock, closed


def updated(clock, loop, *, by_index):
    """An update as the course reports it: expected, then recorded."""
    clock.expect_update("update()", by_index=by_index)
    clock.update(loop)


# The first index of a new iterator.


@pytest.mark.parametrize("resumed", [False, True])
def test_a_first_iterator_is_offered_the_epoch(resumed):
    clock, closed = clock_in(Idle(4, resumed=resumed))
    loop = FakeLoop()
    assert clock.begin(loop)
    assert clock.phase == Offered(4, loop)
    assert closed == []


@pytest.mark.parametrize("alive", [False, True])
def test_before_an_update_a_new_iterator_takes_over(alive):
    first, second = FakeLoop(alive=alive), FakeLoop()
    clock, closed = clock_in(Offered(4, first))
    assert clock.begin(second)
    others = ((first, 1),) if alive else ()
    assert clock.phase == Offered(4, second, others=others)
    assert closed == []
    updated(clock, None, by_index=False)
    assert clock.phase == Training(4, second, others), "an iterator that was kept from a look"


@pytest.mark.parametrize("looks", [1, 3])
def test_a_look_before_the_first_update_leaves_the_epoch_to_the_loop(looks):
    loop = FakeLoop()
    clock, closed = clock_in(Offered(4, loop))
    for _ in range(looks):
        look = FakeLoop()
        clock.begin(look)
        look.alive = False
    updated(clock, None, by_index=False)
    assert clock.phase == Training(4, loop)
    assert closed == []


@pytest.mark.parametrize("consumed", [False, True])
def test_an_iterator_that_has_taken_everything_before_the_first_update(consumed):
    """It has looked at all the data; or, with workers, its batches are still to come."""
    kept, newest = FakeLoop(), FakeLoop(reads_ahead=not consumed)
    clock, _ = clock_in(Offered(4, kept))
    clock.begin(newest)
    newest.issued, newest.alive, newest.consumed = 3, False, consumed
    updated(clock, None, by_index=False)
    assert clock.loop is (kept if consumed else newest)


def test_a_loop_that_continues_after_looks_took_its_epoch_is_refused():
    """The looks were kept for a while, so each of them might have been the loop."""
    loop, look = FakeLoop(), FakeLoop()
    clock, closed = clock_in(Offered(4, loop))
    clock.begin(look)
    updated(clock, None, by_index=False)
    assert clock.phase == Training(4, look, ((loop, 1),))
    look.alive = False
    clock.begin(FakeLoop())
    assert closed == [4]
    loop.issued = 2
    with pytest.raises(RuntimeError, match=TWO_LOOPS):
        updated(clock, None, by_index=False)


def test_an_epoch_of_less_than_a_batch_that_is_dropped_is_over_without_an_update():
    nothing, second = FakeLoop(deliverable=0, issued=0), FakeLoop()
    clock, closed = clock_in(Offered(4, nothing))
    assert clock.is_over
    assert clock.begin(second)
    assert clock.phase == Offered(5, second)
    assert clock.finished == 4
    assert closed == [4]


@pytest.mark.parametrize("old", [FakeLoop(alive=False), FakeLoop(ended=True), None])
@pytest.mark.parametrize("phase", [Training, Ambiguous])
def test_after_the_loop_of_an_epoch_the_next_one_begins(phase, old):
    clock, closed = clock_in(phase(4, old))
    loop = FakeLoop()
    assert clock.begin(loop)
    assert clock.phase == Offered(5, loop)
    assert closed == [4]
    assert clock.finished == (4 if old is not None and old.ended else -1)


@pytest.mark.parametrize("phase", [Training, Ambiguous])
def test_beside_a_loop_that_fetches_on_demand_an_iterator_only_looks(phase):
    loop = FakeLoop(reads_ahead=False)
    clock, closed = clock_in(phase(4, loop))
    assert not clock.begin(FakeLoop())
    assert clock.phase == Ambiguous(4, loop)
    assert closed == []


def test_beside_a_loop_that_reads_ahead_an_iterator_is_the_next_epoch():
    old, new = FakeLoop(reads_ahead=True), FakeLoop()
    clock, closed = clock_in(Training(4, old))
    assert clock.begin(new)
    assert clock.phase == Offered(5, new, rival=old, earlier=((old, 1),))
    assert closed == [4]
    assert clock.finished == -1, "it did not come to its end"


def test_a_rival_is_remembered_however_often_an_iterator_begins():
    """Two looks beside a loop with workers: its next update is of the epoch before."""
    rival, looks = FakeLoop(reads_ahead=True), [FakeLoop(), FakeLoop()]
    clock, _ = clock_in(Training(4, rival))
    for look in looks:
        clock.begin(look)
        look.alive = False
    with pytest.raises(RuntimeError, match=TWO_LOOPS):
        updated(clock, None, by_index=False)
    rival.alive = False
    updated(clock, None, by_index=False)
    assert clock.phase == Training(5, looks[1])


def test_after_the_last_update_the_next_epoch_begins_and_nothing_is_closed_twice():
    clock, closed = clock_in(Complete(4, FakeLoop()), finished=4)
    loop = FakeLoop()
    assert clock.begin(loop)
    assert clock.phase == Offered(5, loop)
    assert closed == []


def test_nothing_is_left_of_a_spent_epoch():
    clock, closed = clock_in(Spent(5), finished=4)
    assert not clock.begin(FakeLoop())
    assert clock.phase == Idle(5, resumed=True)
    assert closed == []
    loop = FakeLoop()
    assert clock.begin(loop), "only the spent epoch yields nothing"
    assert clock.phase == Offered(5, loop)


def test_a_loop_that_tells_more_about_itself():
    walk, loop = FakeLoop(), FakeLoop()
    rival = FakeLoop()
    clock, _ = clock_in(Offered(4, walk, rival))
    clock.identify(loop)
    assert clock.phase == Offered(4, loop, rival)


@pytest.mark.parametrize("exhausted", [False, True])
@pytest.mark.parametrize("continues", [False, True])
def test_a_rival_that_has_continued_since_then_still_delivers(continues, exhausted):
    rival, loop = FakeLoop(reads_ahead=True, issued=2 if continues else 3), FakeLoop()
    rival.deliverable = 3 if exhausted else 9
    clock, _ = clock_in(Training(4, rival))
    clock.begin(loop)
    rival.issued, rival.alive = 3, False  # broken off, or workers let go of what has run dry
    if continues:
        with pytest.raises(RuntimeError, match=TWO_LOOPS):
            updated(clock, None, by_index=False)
    else:  # it was broken off, and the epoch's end has told of the updates that were left out
        updated(clock, None, by_index=False)
        assert clock.phase == Training(5, loop)


# Updates.


@pytest.mark.parametrize("phase", [Idle(4), Idle(4, resumed=True), Spent(4)])
def test_an_update_before_an_iterator(phase):
    clock, _ = clock_in(phase)
    with pytest.raises(RuntimeError, match=BEFORE_ITERATING + " 4"):
        updated(clock, None, by_index=False)
    assert clock.phase == phase
    loop = FakeLoop()
    updated(clock, loop, by_index=True)
    assert clock.phase == Training(4, loop), "the batch tells which samples it has"


def test_the_first_update_makes_the_offered_iterator_the_loop():
    loop = FakeLoop()
    clock, _ = clock_in(Offered(4, loop))
    updated(clock, None, by_index=False)
    assert clock.phase == Training(4, loop)


def test_an_update_while_a_rival_is_alive_may_be_the_rival_s():
    rival, loop = FakeLoop(), FakeLoop()
    clock, _ = clock_in(Offered(5, loop, rival))
    with pytest.raises(RuntimeError, match=TWO_LOOPS + r".* in epoch 5 before the first had"):
        updated(clock, None, by_index=False)
    rival.alive = False
    updated(clock, None, by_index=False)
    assert clock.phase == Training(5, loop)


def test_beside_a_look_only_updates_that_must_be_the_loop_s_are_accepted():
    loop = FakeLoop()
    clock, _ = clock_in(Ambiguous(4, loop))
    clock.refuse_if_ambiguous("update()", waiting=1)
    with pytest.raises(RuntimeError, match=TWO_LOOPS):
        clock.refuse_if_ambiguous("update()", waiting=0)
    loop.alive = False
    with pytest.raises(RuntimeError, match=TWO_LOOPS):
        clock.refuse_if_ambiguous("update()", waiting=1)
    loop.issued = 3  # it has taken everything, so what it has left may still come
    clock.refuse_if_ambiguous("update()", waiting=1)


@pytest.mark.parametrize("phase", [Training, Complete])
def test_without_a_look_nothing_is_ambiguous(phase):
    clock, _ = clock_in(phase(4, FakeLoop(alive=False)))
    clock.refuse_if_ambiguous("update()", waiting=0)


def test_the_last_update():
    loop = FakeLoop()
    clock, closed = clock_in(Training(4, loop))
    assert not clock.is_over
    clock.complete()
    assert clock.phase == Complete(4, loop)
    assert clock.finished == 4
    assert clock.is_over
    assert closed == [], "whoever calls complete() has closed the epoch"


# set_epoch.


STAY = [
    Idle(4),
    Idle(4, resumed=True),
    Offered(4, FakeLoop()),
    Offered(4, FakeLoop(alive=False)),
    Training(4, FakeLoop()),
    Training(4, None),
    Training(4, FakeLoop(alive=False, issued=3)),  # its last updates may still come
    Ambiguous(4, FakeLoop()),
    Complete(4, FakeLoop()),  # still in the loop's body
]


@pytest.mark.parametrize("phase", STAY, ids=repr)
def test_the_same_epoch_again_changes_nothing(phase):
    clock, closed = clock_in(phase)
    clock.set_epoch(4)
    clock.set_epoch(4)
    assert clock.phase == phase
    assert closed == []


@pytest.mark.parametrize("phase", [Training, Ambiguous])
def test_the_same_epoch_once_more_after_it_was_broken_off(phase):
    clock, closed = clock_in(phase(4, FakeLoop(alive=False)))
    clock.set_epoch(4)
    assert clock.phase == Idle(4)
    assert closed == [4]


def test_the_same_epoch_once_more_after_its_end():
    clock, closed = clock_in(Complete(4, FakeLoop(alive=False)), finished=4)
    clock.set_epoch(4)
    assert clock.phase == Idle(4)
    assert closed == []
    clock, closed = clock_in(Training(4, FakeLoop(alive=False, ended=True)))
    clock.set_epoch(4)
    assert clock.phase == Idle(4)
    assert clock.finished == 4
    assert closed == [4]


def test_a_spent_epoch_s_successor():
    clock, closed = clock_in(Spent(5), finished=4)
    clock.set_epoch(5)
    assert clock.phase == Idle(5, resumed=True)
    assert closed == []


@pytest.mark.parametrize("epoch", [0, 3, 5, 9])
@pytest.mark.parametrize("phase", [p for p in STAY if p != Idle(4, resumed=True)], ids=repr)
def test_another_epoch(phase, epoch):
    clock, closed = clock_in(phase)
    clock.set_epoch(epoch)
    assert clock.phase == Idle(epoch)
    assert closed == ([] if isinstance(phase, Complete) else [4])


@pytest.mark.parametrize("phase", [Idle(5, resumed=True), Spent(5)])
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
    ("phase", "over", "left"),
    [
        (Idle(4), False, False),
        (Spent(4), False, False),
        (Offered(4, FakeLoop(issued=3, alive=False)), False, False),
        (Offered(4, FakeLoop(issued=0, deliverable=None)), False, False),
        (Training(4, FakeLoop(issued=3)), False, False),
        (Training(4, FakeLoop(issued=3, alive=False)), False, True),
        (Training(4, FakeLoop(ended=True)), True, False),
        (Training(4, None), False, False),
        (Ambiguous(4, FakeLoop(alive=False)), False, True),
        (Complete(4, FakeLoop()), True, False),
        (Complete(4, FakeLoop(alive=False)), True, True),
    ],
    ids=repr,
)
def test_what_a_checkpoint_reads(phase, over, left):
    clock, closed = clock_in(phase)
    assert clock.is_over is over
    assert clock.was_left is left
    assert clock.epoch == 4
    assert clock.loop is getattr(phase, "loop", None)
    assert clock.phase is phase
    assert closed == []


@pytest.mark.parametrize("phase", [*STAY, Spent(4)], ids=repr)
def test_a_checkpoint_leads_from_anywhere_to_the_epoch_that_it_names(phase):
    clock, closed = clock_in(phase)
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


def test_a_loop_that_never_updates_causes_a_warning_at_the_next():
    clock, closed = clock_in(Offered(4, FakeLoop(issued=3, alive=False, consumed=True)))
    loop = FakeLoop()
    with pytest.warns(UserWarning, match=NO_UPDATE):
        assert clock.begin(loop)
    assert clock.phase == Offered(4, loop)
    assert closed == []


def test_a_loop_that_never_updates_and_names_its_epochs():
    clock, _ = clock_in(Offered(4, FakeLoop(issued=3, alive=False, consumed=True)))
    clock.set_epoch(4)  # the same epoch: nothing has changed yet
    with pytest.warns(UserWarning, match=NO_UPDATE):
        clock.set_epoch(5)
    assert clock.phase == Idle(5)


def test_a_look_at_a_few_batches_is_not_warned_about():
    clock, _ = clock_in(Offered(4, FakeLoop(issued=3, alive=False, consumed=False)))
    clock.begin(FakeLoop())  # warnings are errors


# Any sequence of events.


class Loops(RuleBasedStateMachine):
    """A user with several iterators at hand, and the epoch that each of them was handed.

    Around the clock is as little of the course as it needs: the counts by which an update is
    accepted, and who closes an epoch. Updates come only from iterators that the user may still be
    training with. An iterator is no longer one after a break, after set_epoch() or load() that began
    something else, after a warning that updates of it were left out, and after its epoch, if it only
    looked at it: it began beside a loop, or took nothing more after a newer iterator began.
    """

    def __init__(self):
        super().__init__()
        self.clock = Clock(self.close)
        self.loops = []  # that may still deliver
        self.trained = []  # the epochs that were trained on, in order
        self.closed = []
        self.open = False  # the last of them is not closed yet
        self.saved = None

    # The course's part.

    def close(self):
        assert not isinstance(self.clock.phase, Complete), "it is closed already"
        if self.open:
            self.closed.append(self.clock.epoch)
            self.open = False
        loop = self.clock.loop
        warned = loop is not None and loop.exhausted and 0 < loop.updated < loop.deliverable
        others = getattr(self.clock.phase, "others", ())
        continued = [other for other, taken in others if other.issued > taken and other.alive]
        self.loops = [known for known in self.loops if known in (loop, *continued) and not warned]

    def event(self, happens):
        """Let something happen that must not lead to an earlier epoch."""
        before = self.clock.epoch
        result = happens()
        assert self.clock.epoch >= before
        assert self.closed == self.trained[: len(self.closed)]
        return result

    # What a user does.

    @initialize(reads_ahead=st.booleans(), batches=st.integers(1, 5))
    def build_loader(self, reads_ahead, batches):
        self.reads_ahead, self.batches = reads_ahead, batches

    @rule(iterators=st.integers(1, 2), other_kind=st.sampled_from([False, False, False, True]))
    def begin(self, iterators, other_kind):
        for _ in range(iterators):
            self.begin_one(reads_ahead=self.reads_ahead != other_kind)

    def begin_one(self, reads_ahead):
        before = self.clock.phase
        loop = FakeLoop(reads_ahead=reads_ahead, deliverable=self.batches)
        loop.issued = min(2 if reads_ahead else 1, self.batches)
        loop.alive = not (reads_ahead and loop.exhausted)  # workers let go of what has run dry
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a loop without updates is tested above
            self.event(lambda: self.clock.begin(loop))
        if isinstance(before, Spent):
            assert self.clock.phase == Idle(before.epoch, resumed=True)
            return  # it yields nothing
        assert isinstance(self.clock.phase, Offered | Ambiguous)
        loop.epoch = self.clock.epoch
        self.loops.append(loop)

    @precondition(lambda self: self.loops)
    @rule(data=st.data())
    def take(self, data):
        """Ask for another batch: on demand, or the workers read on."""
        loop = data.draw(st.sampled_from(self.loops))
        if not loop.exhausted:
            self.take_one(loop)
        elif not loop.waiting:
            loop.alive, loop.consumed = False, True
            self.loops.remove(loop)

    def take_one(self, loop):
        loop.issued += 1
        loop.alive = not (loop.reads_ahead and loop.exhausted)

    @precondition(lambda self: self.loops)
    @rule(data=st.data(), to_the_end=st.booleans())
    def update(self, data, to_the_end):
        loop = data.draw(st.sampled_from(self.loops))
        while loop in self.loops and loop.waiting and self.update_once(loop) and to_the_end:
            if not loop.exhausted:
                self.take_one(loop)

    def update_once(self, loop):
        """Report a batch of ``loop``; return whether it was accepted."""
        before = self.clock.phase
        try:
            if not isinstance(before, Training):
                self.event(lambda: updated(self.clock, None, by_index=False))
                held = self.clock.loop
                self.clock.refuse_if_ambiguous(
                    "update()", waiting=0 if held is None else held.waiting
                )
        except RuntimeError:
            assert isinstance(before, Idle | Spent | Ambiguous | Offered)
            return False
        holder = self.clock.loop
        if not holder.waiting:  # counting refuses it
            return False
        assert self.clock.epoch == loop.epoch, "an update of another epoch"
        if not self.open and not isinstance(self.clock.phase, Complete):
            self.trained.append(loop.epoch)
            self.open = True
        holder.updated += 1
        if holder.exhausted and holder.updated == holder.deliverable and self.open:
            self.close()
            self.clock.complete()
            assert self.clock.finished == loop.epoch
            self.loops = []
        return True

    @rule(what=st.sampled_from(["break off", "set_epoch", "read", "load"]), data=st.data())
    def do_something_else(self, what, data):
        """One rule for what is rarer than iterating and updating."""
        if what == "break off" and self.loops:
            loop = data.draw(st.sampled_from(self.loops))
            loop.alive = False
            self.loops.remove(loop)
        elif what == "set_epoch":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # as in begin_one
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
            self.loops = []  # the user's word that something else begins

    def read(self):
        """The length, a checkpoint, a progress bar: nothing changes."""
        before = self.clock.phase
        over, epoch = self.clock.is_over, self.clock.epoch
        _ = self.clock.was_left, self.clock.loop
        assert self.clock.phase is before
        self.saved = (epoch + 1, epoch) if over else (epoch, self.clock.finished)

    def load(self, asks_for_what_is_finished):
        epoch, finished = self.saved
        self.clock.load(epoch, finished)
        assert self.clock.phase == Idle(epoch, resumed=True)
        if self.open:
            self.trained.pop()  # forgotten: it will never be closed
        self.open, self.loops = False, []
        if asks_for_what_is_finished and finished == epoch - 1 >= 0:
            self.clock.set_epoch(finished)
            assert self.clock.phase == Spent(epoch)

    @invariant()
    def every_epoch_that_was_trained_on_is_closed_once(self):
        assert self.closed == (self.trained[:-1] if self.open else self.trained)


Loops.TestCase.settings = settings(max_examples=300, stateful_step_count=40)
test_no_sequence_of_events_assigns_an_update_to_another_epoch = Loops.TestCase
