"""The epochs of a training run, one after the other: the clock, the current epoch, the memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from infobatch.distributed.ranks import Ranks
from infobatch.epoch import boundary
from infobatch.epoch.clock import Clock, Complete, Offered, Spent, Training
from infobatch.epoch.matching import (
    ReadPosition,
    check_data_length,
    check_endless,
    check_position,
)
from infobatch.epoch.progress import Progress
from infobatch.epoch.run import Resumed, Run
from infobatch.epoch.walk import Walk
from infobatch.forecast.realised import warn_of_noise
from infobatch.forecast.shadow import Shadow
from infobatch.loaders.known import KnownLoaders
from infobatch.memory.memory import Memory
from infobatch.memory.state import ShadowState, State
from infobatch.plan import fingerprint
from infobatch.policies.planning import Planner
from infobatch.savings import EpochPasses
from infobatch.step.losses import IndexLosses, PositionLosses
from infobatch.step.route import Route


class Course:
    """The current epoch, the losses recorded in it, and the memory of earlier epochs.

    ``find_ranks`` returns the rank of this process, and is called again for each epoch.
    """

    def __init__(
        self, planner: Planner, seed: int, find_ranks: Callable[[], Ranks], loaders: KnownLoaders
    ) -> None:
        self.seed = seed
        self.clock: Clock = Clock(self._close, self._walk)
        self.history: list[EpochPasses] = []
        self.find_ranks = find_ranks
        self.planner = planner
        self.shadows = {name: Shadow(rule) for name, rule in planner.shadows.items()}
        self._loaders = loaders
        self._memory: Memory | None = None
        self._run: Run | None = None
        self._loaders_position: ReadPosition | None = None  # from a stateful loader's checkpoint
        self._epoch_was_set = False  # since the start, or since a state was loaded
        self._warned: set[Callable[..., bool]] = set()

    def current_memory(self) -> Memory:
        """What is remembered about the samples; with sharded scores, about this rank's."""
        memory = self._memory
        if memory is None or self.is_fresh:
            ranks = self.find_ranks()
            owned = ranks.owned(self.planner.num_samples)
            if memory is None or len(memory) != owned:  # or read before the process group existed
                memory = self._memory = self.planner.new_memory(ranks)
        return memory

    @property
    def is_fresh(self) -> bool:
        """Whether nothing was recorded yet."""
        return not self.history and (self._run is None or not self._run.made())

    def current_run(self) -> Run:
        """The running epoch; its plan is drawn now if it has not been drawn yet."""
        run, epoch = self._run, self.clock.epoch
        if run is not None and run.epoch != epoch:
            run = self._run = None  # freed before the next plan is drawn
        if run is not None and not run.updated and not run.walk.alive:
            ranks = self.find_ranks()
            if ranks != run.ranks:  # the group came after the plan or a batch was read
                run = self._run = None if ranks.sharded else run.on(ranks)
        if run is None:
            self._once(boundary.warn_of_old_scores, self.planner, epoch, self.history[-1:])
            ranks = self.find_ranks()
            plan = self.planner.draw(
                self.current_memory(), ranks, self.history, epoch=epoch, seed=self.seed
            )
            run = self._run = Run(epoch, plan, ranks, self.planner.channels)
        return run

    # For the sampler.

    def begin(self, walk: Walk) -> Route | None:
        """Begin a pass over an epoch: this one if none of it was trained on, else the next."""
        self._loaders.check(same_length=walk.cut is not None and walk.cut.shrinks)
        position, self._loaders_position = self._loaders_position, None
        if position is not None:
            done = 0 if self._run is None else self._run.made()
            check_position(position, self.clock, done)
        check_data_length(walk, self.planner.num_samples)
        if self.find_ranks().share_batches:
            self._check_epoch_was_set()
        if self._run is not None and self._run.updated:
            check_endless(self._run.walk.loader, walk.loader, self.clock.epoch)
        if isinstance(self.clock.phase, Offered) and self._run and self._run.rest_was_dropped():
            self._complete()
        resumed = self.clock.resumed
        at_once = walk.loader is not None and walk.loader.read_ahead > 0
        if not self.clock.begin(at_once=at_once):
            return None
        run = self.current_run()
        walk.prepared = self._loaders.prepared(run.ranks.world_size)
        if resumed and run.made() and walk.prepared is not None:
            walk.prepared.check_resume(run.epoch, run.made())
        run.begin(walk)
        return run.route

    def check_turn(self, walk: Walk) -> None:
        """Raise if an iterator asks for more after another one has taken over the epoch."""
        run = self._run
        if run is None or run.walk is walk or walk.issued >= walk.to_issue:
            return  # the current one, or it is about to learn that nothing is left
        self.clock.check_turn(walk, of_this_epoch=walk.route is run.route)
        run.begin(walk)  # the newer one was only a look at the data

    def length(self, *, shrinks: bool = False) -> Route | None:
        """The route that determines the sampler's length; None if nothing is left."""
        self._loaders.check(same_length=shrinks)
        return None if isinstance(self.clock.phase, Spent) else self.current_run().route

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch, as the caller asks."""
        clock, counter = self.clock, self._loaders.counter()
        self._epoch_was_set = True
        in_mid_epoch = self._run is not None and not self._run.closed and self._run.made() > 0
        ours = clock.meant_by(epoch, counter=counter, in_mid_epoch=in_mid_epoch)
        if counter == epoch and ours == clock.epoch and self._was_broken_off():
            ours += 1  # the loader counts only completed epochs
            clock.offset = ours - epoch
        if ours == clock.epoch and clock.would_repeat and self.find_ranks().share_batches:
            raise RuntimeError(
                f"set_epoch({epoch}) would repeat an epoch that was left early, which is not possible with "
                f"model_group=: ranks without losses cannot tell. Expected set_epoch({epoch + 1}), or "
                "load_state_dict() to start again from a checkpoint."
            )
        clock.set_epoch(ours)
        run = self._run
        if run is not None and not isinstance(clock.phase, Complete):
            self._run = None if run.closed or run.epoch != clock.epoch else run

    def _check_epoch_was_set(self) -> None:
        """Raise if ranks that share batches would not know together that an epoch is over."""
        if not self._epoch_was_set or isinstance(self.clock.phase, Training | Complete):
            epoch = self.clock.epoch + isinstance(self.clock.phase, Training | Complete)
            raise RuntimeError(
                f"The loader was iterated without set_epoch({epoch}), which model_group= needs: a rank "
                "without losses, such as the first stage of a pipeline, cannot tell by itself that an "
                "epoch is over. Expected train_data.set_epoch(epoch) on every rank before each "
                "epoch, and once more after the last one."
            )

    def _was_broken_off(self) -> bool:
        run = self._run
        # On a rank whose batches another one sends, only the loader's own count shows it.
        return run is not None and run.updated > 0 and not (run.walk.has_sampler and run.walk.alive)

    def position(self) -> ReadPosition:
        """How far the loader has read."""
        run = self._run
        if run is None or run.closed or not run.walk.has_sampler:
            return ReadPosition(self.clock.epoch, 0 if run is None else run.made())
        return ReadPosition(self.clock.epoch, run.route.reached(run.walk.issued))

    def expect_position(self, position: ReadPosition) -> None:
        """Note the position in a loader's checkpoint; it is compared when the loader is iterated."""
        self._loaders_position = position

    # For the training loop.

    def run_for(self, call: str, by_index: bool) -> Run:
        """Return the epoch that an update belongs to, or raise an error if that is unknown."""
        in_training = self.clock.phase.__class__ is Training
        run = self._run if in_training and self._run is not None else self.current_run()
        if run.ranks.global_order and not by_index:
            raise RuntimeError(
                f"{call} got no index=, but with {run.ranks.world_size} ranks and global_order the "
                "loader shards the batches itself, so only the batch itself can say which samples it has. "
                "Expected the index in the batch: Pruner, Indexed, with_index, and "
                "update(losses, index=index)."
            )
        if not in_training:
            self.clock.check_update(call, by_index=by_index)
            if not run.walk.has_begun:  # another rank may have the sampler, and send the batches
                run.walk.prepared = self._loaders.prepared(run.ranks.world_size)
        return run

    def after_update(self, run: Run) -> None:
        """Note that the epoch has begun, and close it after its last update.

        Nothing after that is collective. Called for the first update and from ``check_at`` on.
        """
        self.clock.update()
        if run.epoch >= self.planner.num_epochs:
            self._once(boundary.warn_of_more_epochs, run.epoch, self.planner.num_epochs)
        if run.closed or not run.is_complete():
            return
        if run.ranks.world_size > 1 and not run.ranks.communicator.connected:
            return  # ranks given only by argument: the next epoch raises the error
        self._complete()

    def leave_early(self, batches: int) -> None:
        """Note that the loop left this epoch on purpose after this number of batches.

        Near an epoch's end, a loader with workers has read ahead to the end; the batches that the
        loop did not take would look like missing updates. They still do if a different number of
        batches was updated.
        """
        run = self._run
        if run is not None:
            run.walk.left = True
            known = run.walk.batches
            run.walk.left_after_update = known is not None and run.updated == known.end(0, batches)

    def _close(self) -> None:
        run, connected = self._run, self.find_ranks().connected
        # All ranks take part, since some may not have iterated or received a batch. (Without a
        # process group there is no rank to wait for, and one that iterated gets an error.)
        if run is None and connected:
            run = self.current_run()
        if run is None or run.closed or not (connected or run.walk.has_begun or run.losses):
            return
        passes = boundary.close_epoch(
            run, self.current_memory(), self.planner, self.shadows.values(), self.seed
        )
        if passes is not None:
            if not self.history and passes.epoch:
                boundary.warn_of_first_epoch(passes.epoch)
            self.history.append(passes)
            self._once(warn_of_noise, self.planner, self.history)

    def _once(self, warn: Callable[..., bool], *facts: object) -> None:
        """Let ``warn`` look at the facts until it has warned."""
        if warn not in self._warned and warn(*facts):
            self._warned.add(warn)

    def _walk(self) -> Walk:
        return Walk() if self._run is None else self._run.walk

    def _complete(self) -> None:
        self._close()
        self.clock.complete()

    @property
    def planned_run(self) -> Run | None:
        """The running epoch, or the one that has just ended, if its plan has been drawn."""
        run = self._run
        return run if run is not None and run.epoch == self.clock.epoch else None

    @property
    def finished_run(self) -> Run | None:
        """The epoch that has just ended, until the next one is requested."""
        return self._run if isinstance(self.clock.phase, Complete) else None

    # Available at any time.

    def recording(self) -> Run | None:
        """The run whose losses are not yet part of the memory, if any were; may wait for the device."""
        run = self._run
        if run is None or run.closed or run.losses is None:
            return None
        return run if run.visited() else None

    def passes(self) -> list[EpochPasses]:
        """The passes of all epochs so far, including the running one."""
        run = self.recording()
        under_way = [] if run is None else [boundary.passes_of(run, run.unscored())]
        return [*self.history, *under_way]

    def progress(self) -> Progress:
        """How far the running epoch has come."""
        run, full = self.planned_run, self.planner.num_samples
        return Progress(self.clock.epoch, 0, full, full) if run is None else run.progress()

    def known_memory(self) -> Memory:
        """A copy of the memory as it would be if the running epoch ended here."""
        memory, run = self.current_memory().copy(), self.recording()
        if run is not None and run.losses is not None:
            boundary.fold(run.losses.blocks, memory, run)
        return memory

    def state(self, *, gather: bool) -> State:
        """Everything needed to continue from here; collective in the middle of an epoch."""
        clock, run = self.clock, self._run
        if gather and run is not None and not run.closed and self._is_in_mid_epoch(run):
            run.ranks.meet("state_dict()")
            losses_to_exchange = boundary.agree(run)
            if losses_to_exchange is not None:
                losses_to_exchange.exchange()
            if clock.is_over or run.covers_all():
                self._complete()
        epoch, finished, run = clock.epoch, clock.finished, self.recording()
        shadows = self.shadows
        if run is None or clock.is_over:  # between epochs, as far as this rank knows
            if clock.is_over:
                epoch, finished = epoch + 1, epoch
            if run is not None:
                shadows = {name: rule.as_if_over(run, self.seed) for name, rule in shadows.items()}
            columns, history, run = self.known_memory().columns, tuple(self.passes()), None
        else:
            columns, history = self.current_memory().copy().columns, tuple(self.history)
        losses, extras = (np.empty(0, np.float32), {}) if run is None else run.recorded()
        ranks = self.find_ranks()
        return State(
            num_samples=self.planner.num_samples,
            shard=ranks.shard,
            seed=self.seed,
            epoch=epoch,
            finished=finished,
            columns=columns,
            losses=losses,
            extras=extras,
            losses_by="index" if run is not None and run.by_index else "position",
            plan_check=0 if run is None else fingerprint(run.plan),
            batch=0 if run is None else run.largest_batch,
            history=history,
            shadows={name: shadow.state(ranks) for name, shadow in shadows.items()},
        )

    def _is_in_mid_epoch(self, run: Run) -> bool:
        """Whether other ranks may have recorded losses that this one does not have."""
        if run.updated:
            return True
        if not isinstance(self.clock.phase, Offered):
            return False
        return run.walk.alive or run.walk.exhausted  # looking at a batch does not begin the epoch

    def load(self, state: State) -> None:
        """Continue from a state; raise if its epoch cannot be drawn again."""
        ranks = self.find_ranks()
        memory = self.planner.new_memory(ranks)
        memory.restore(state.columns)
        run = None
        if len(state.losses):
            key = {"epoch": state.epoch, "seed": state.seed}
            plan = self.planner.draw(memory, ranks, state.history, **key)
            kind = IndexLosses if state.losses_by == "index" else PositionLosses
            too_long = kind is PositionLosses and len(state.losses) > len(plan)
            if fingerprint(plan) != state.plan_check or too_long:
                raise ValueError(
                    f"load_state_dict() got a state from the middle of epoch {state.epoch}, but the "
                    "plan that it leads to here is not the one that was saved. Expected the same settings as "
                    f"when it was saved (here {self.planner}) and the same versions of infobatch and "
                    "numpy."
                )
            unknown = np.full_like(state.losses, np.inf)  # a channel that the checkpoint lacks
            extras = [state.extras.get(name, unknown) for name in self.planner.channels]
            resumed = Resumed(np.stack([state.losses, *extras]), kind, state.batch)
            run = Run(state.epoch, plan, ranks, self.planner.channels, resumed)
        self.seed = state.seed
        self.history = list(state.history)
        self.clock.load(state.epoch, state.finished)
        self._epoch_was_set = False
        self._memory, self._run = memory, run
        initial = ShadowState(memory.copy().columns, ())  # a new shadow starts from the scores
        for name, shadow in self.shadows.items():
            shadow.load(state.shadows.get(name, initial), ranks)
