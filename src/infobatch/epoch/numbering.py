"""Translation of the caller's epoch numbers to ours."""

from __future__ import annotations


class Numbering:
    """Maps the epochs of loops that count from 0 again after a resume to ours.

    Ours are counted over the whole training. ``offset`` is the epoch that the caller calls 0. It is
    unknown after a load until the first call shows it: an epoch before the loaded one is taken as
    the start of the caller's own count.
    """

    def __init__(self) -> None:
        self.offset: int | None = 0

    def forget(self) -> None:
        """Forget the offset after a load: the next call shows where the caller's count begins."""
        self.offset = None

    def settle(self) -> None:
        """Assume that the caller counts as we do, because training continues without a call."""
        if self.offset is None:
            self.offset = 0

    def ours(self, epoch: int, *, current: int, is_end: bool, counter: int | None) -> int:
        """The epoch that the caller means by ``epoch``.

        ``current`` is our epoch. ``is_end`` means that ``epoch`` is the one whose end was loaded: a
        loop that was stopped after its epoch's last step asks for that epoch again. ``counter`` is
        the loader's own count, if the loader is the caller.
        """
        if self.offset is None:
            begins_again = counter == epoch or (epoch < current and not is_end)
            self.offset = current - epoch if begins_again else 0
        return epoch + self.offset

    def skip_one(self) -> None:
        """Allow for an epoch that was left early, which we count and the caller does not."""
        assert self.offset is not None
        self.offset += 1
