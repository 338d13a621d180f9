"""The caller's epoch number to ours."""

from __future__ import annotations


class Numbering:
    """Some loops count epochs from 0 again after a resume; ours are counted over the whole training.

    ``offset`` is what the caller calls 0. It is unknown after a load, until the first call shows it:
    an epoch before the loaded one is taken for the start of the caller's own count.
    """

    def __init__(self) -> None:
        self.offset: int | None = 0

    def forget(self) -> None:
        """A state was loaded: the next call shows where the caller's count begins."""
        self.offset = None

    def settle(self) -> None:
        """Training continues without a call: the caller's count, if there is one, is ours."""
        if self.offset is None:
            self.offset = 0

    def ours(self, epoch: int, *, current: int, is_end: bool, counter: int | None) -> int:
        """The epoch that the caller means by ``epoch``.

        ``current`` is ours; ``is_end``: it is the number of the epoch whose end was loaded: a loop
        that was stopped after its epoch's last step asks for that epoch again. ``counter`` is the
        loader's own count, where the loader is the caller.
        """
        if self.offset is None:
            begins_again = counter == epoch or (epoch < current and not is_end)
            self.offset = current - epoch if begins_again else 0
        return epoch + self.offset

    def skip_one(self) -> None:
        """The caller does not count an epoch that was left early, and we do."""
        assert self.offset is not None
        self.offset += 1
