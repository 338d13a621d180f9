"""The caller's epoch number to ours: loops that count from 0 again after a resume."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infobatch.epoch.numbering import Numbering


def ours(numbering, said, *, current, is_end=False, counter=None):
    return numbering.ours(said, current=current, is_end=is_end, counter=counter)


@given(said=st.integers(0, 50), current=st.integers(0, 50), counted=st.booleans())
def test_without_a_resume_the_caller_s_number_is_ours(said, current, counted):
    numbering = Numbering()
    assert ours(numbering, said, current=current, counter=said if counted else None) == said


@given(current=st.integers(1, 50), first=st.integers(0, 60), later=st.integers(0, 60))
def test_after_a_resume_an_earlier_number_is_the_start_of_a_new_count(current, first, later):
    numbering = Numbering()
    numbering.forget()
    meant = ours(numbering, first, current=current)
    assert meant == (current if first < current else first)
    assert ours(numbering, later, current=current) - meant == later - first, "decided once"


def test_the_end_that_was_loaded_is_meant_as_it_is_said():
    numbering = Numbering()
    numbering.forget()
    assert ours(numbering, 4, current=5, is_end=True) == 4
    assert ours(numbering, 5, current=5) == 5


@pytest.mark.parametrize("said", [0, 3, 8])
def test_a_loader_s_own_counter_always_begins_again(said):
    """Even a count that is ahead of ours, or that is exactly the end that was loaded."""
    numbering = Numbering()
    numbering.forget()
    assert ours(numbering, said, current=4, is_end=True, counter=said) == 4
    assert ours(numbering, said + 1, current=4, counter=said + 1) == 5


def test_a_counter_that_somebody_else_s_call_does_not_agree_with():
    numbering = Numbering()
    numbering.forget()
    assert ours(numbering, 6, current=4, counter=0) == 6


def test_training_that_continues_without_a_call_settles_the_count():
    numbering = Numbering()
    numbering.forget()
    numbering.settle()
    assert ours(numbering, 2, current=5) == 2
    numbering.settle()  # changes nothing where it is known
    assert ours(numbering, 2, current=5) == 2


def test_an_epoch_that_only_we_count():
    numbering = Numbering()
    numbering.skip_one()
    assert ours(numbering, 1, current=1) == 2
    numbering.forget()
    assert ours(numbering, 7, current=7) == 7
