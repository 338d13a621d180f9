"""What a stored comparison says, as Markdown."""

from __future__ import annotations

import re
import statistics
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from stored import identity

from infobatch.forecast import percent
from infobatch.lab.compare.answer import headline
from infobatch.lab.compare.results import Results, Settings
from infobatch.lab.run.arms import Arm
from infobatch.lab.stats.curve import Saving
from infobatch.lab.stats.frontier import Frontier, Point
from infobatch.lab.stats.intervals import FEWEST_SEEDS, decimals, signed
from infobatch.lab.stats.runs import AUTO, RANDOM, Summary, mean_and_deviation

# The rules of the README's table: their titles, and the rules of the arms that have them.
RULES = {
    RANDOM: ("random pruning", (RANDOM,)),
    "infobatch": ("the paper's mean rule", ("infobatch", "mean")),
    "quantile": ("the paper's two bands", ("quantile",)),
    AUTO: ("`auto`, our noise budget", (AUTO,)),
}
# When pruning helps, by what the network has left to learn, and the studies of each.
REGIMES = {
    "most samples learned before its end": (
        "demo",
        "fresh-fashion",
        "same-rate-fashion",
        "frontier-covertype",
    ),
    "most samples still being learned at its end": ("wide-cifar10",),
    "only a few epochs": ("few-epochs-alpaca",),
}
FULL_COLUMN = "against all data at full length"
NAMES = {
    "infobatch": "`infobatch` (the paper's mean rule)",
    "quantile": "`quantile` (the paper's two-band rule)",
    "auto": "`auto` (our noise budget: tau = 0.2, delta = 1)",
    "auto:gradient=root": "`auto` (our noise budget: tau = 0.2, delta = 1, for squared errors)",
}


def finding(results: Results) -> str:
    """What a comparison says: its decision or, where one length cannot give one, the differences."""
    settings = results.settings
    if len(settings.lengths) > 1:
        return headline(results)
    digits, unit = decimals(settings.margin), f" {settings.unit}" if settings.unit else ""
    rows = [
        (point.to_full.mean, row)
        for row in results.summaries
        if (point := results.point(row.arm, row.length)) is not None and point.to_full is not None
    ]
    pruned = [(mean, row) for mean, row in rows if not is_coreset(row.arm)]
    of_many = len(pruned) < len(rows)  # a table of subsets has many rules, too
    parts = [
        f"{name_of(row, results).partition(' (')[0]} {signed(mean, digits)} ({row.saved_fraction:.0%} saved)"
        for mean, row in (best_by_saving(pruned) if of_many else pruned)
    ]
    selection = ", the best rule at each saving" if of_many else ""
    return f"Against all data, in{unit}{selection}: {'; '.join(parts)}." + better_than_chance(
        results
    )


def best_by_saving(rows: Iterable[tuple[float, Summary]]) -> list[tuple[float, Summary]]:
    """Of rows that save the same share, to the nearest 5%, the one with the largest difference."""
    best: dict[int, tuple[float, Summary]] = {}
    for mean, row in rows:
        saving = round(20 * row.saved_fraction)
        if saving not in best or mean > best[saving][0]:
            best[saving] = mean, row
    return [best[saving] for saving in sorted(best)]


def better_than_chance(results: Results) -> str:
    """The subsets chosen before training that beat a random one at every share; empty without any."""
    by_method = coresets_by_method(results)
    if not by_method:
        return ""
    chance = by_method.pop("random")
    better = [
        f"`{method}`"
        for method, cells in by_method.items()
        if not any(is_worse(cells[share], chance[share]) for share in chance)
    ]
    are = "is" if len(better) == 1 else "are"
    return (
        f" Of {len(by_method)} ways of choosing a subset before training, {len(better) or 'none'} {are} at least as good "
        f"as a random subset at every share{': ' if better else ''}{', '.join(better)}."
    )


def table(
    results: Results, *, every_length: bool = False, paper: Mapping[str, str] | None = None
) -> list[str]:
    """A row for all data at each length, then for each arm at full length, or at each.

    ``paper`` has the paper's own figures by arm.
    """
    settings = results.settings
    has_curve = len(settings.lengths) > 1
    columns = ["training", f"test {settings.metric}", "sample passes saved"]
    columns += ["saved at equal quality"] if has_curve else []
    columns += ["in the paper"] if paper else []
    columns += ["difference from all data", "verdict"]
    words = {(row.arm, row.length): row.word for row in results.conclusions.verdicts}
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for row in results.summaries:
        if is_coreset(row.arm) or (row.arm != "full" and row.length < 1 and not every_length):
            continue
        if row.arm in unfinished(results):
            continue
        point = results.point(row.arm, row.length)
        cells = [
            name_of(row, results),
            mean_and_deviation(row.metric, decimals(settings.margin)),
            f"{row.saved_fraction:.1%}".replace("-", "−"),
        ]
        if has_curve:
            cells.append(saving(point))
        if paper:
            cells.append(paper.get(row.arm, "–"))
        cells += [difference(point, results), words.get((row.arm, row.length), "–")]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


@dataclass(frozen=True)
class ArmSavings:
    """What an arm of a comparison saves: the two numbers by which it is judged.

    Args:
        pooled: at equal quality, from its lengths from 0.6 to 1 together; None if it diverged.
        against_full: the passes that it saves and how it differs from all data at full length, in words.
    """

    arm: str
    seeds: int
    pooled: Saving | None
    against_full: str

    @property
    def has_interval(self) -> bool:
        """Whether the seeds suffice for an interval of the first number, perhaps open on a side."""
        return self.seeds >= FEWEST_SEEDS and self.pooled is not None and bool(self.pooled.interval)

    @property
    def pooled_text(self) -> str:
        """The first number in words."""
        return "–" if self.pooled is None else self.pooled.text


def arm_savings(results: Results) -> list[ArmSavings]:
    """The savings of every arm of a comparison with several lengths, in their order; not of unfinished ones."""
    frontier = results.conclusions.frontier
    if frontier is None:
        return []
    return [
        ArmSavings(
            row.arm, len(row.seeds), row.saving, against_full(row.arm, frontier, results.settings)
        )
        for row in frontier.pooled
        if row.arm not in unfinished(results)
    ]


def unfinished(results: Results) -> dict[str, int]:
    """The arms of a comparison with several lengths that have fewer seeds than all data, with their numbers of seeds.

    A saving on one seed does not stand beside one on five.
    """
    frontier = results.conclusions.frontier
    if frontier is None or len(results.settings.lengths) == 1:
        return {}
    counts = {row.arm: len(row.seeds) for row in frontier.pooled}
    return {arm: count for arm, count in counts.items() if count < len(frontier.seeds)}


def against_full(arm: str, frontier: Frontier, settings: Settings) -> str:
    """Passes and quality of an arm against all data at full length, at one of the arm's lengths.

    It is the shortest whose mean is at least as good as that of all data or, if none is, the longest. Lengths that not all
    seeds have been trained for do not count.
    """
    points = [row for row in frontier.points if (row.arm, row.seeds) == (arm, frontier.seeds)]
    points = sorted(points, key=lambda row: row.length)
    as_good = [row for row in points if row.to_full is not None and row.to_full.mean >= 0]
    point = (as_good or points[-1:])[0]
    if point.to_full is None or point.saved is None:
        return "diverged"
    words = point.to_full.in_words(decimals(settings.margin), unit=settings.unit)
    return f"{percent(abs(point.saved))} {'more' if point.saved < 0 else 'fewer'} passes, {words}"


def regimes_table(rows: Iterable[tuple[str, str, Results]]) -> list[str]:
    """A row per regime: the tasks measured, given their names, pages and results, and what `auto` saves there.

    Only tasks for which the saving has an interval: the others cannot be compared with them.
    """
    measured = []
    for name, page, results in rows:
        ours = savings_of(AUTO, results)
        if ours is not None and ours.has_interval:
            settings = results.settings
            task = f"[{name}]({page}), {settings.epochs} epochs, {ours.seeds} seeds"
            measured.append((page, task, ours.pooled_text, ours.against_full))
    columns = [
        "if your training has",
        "measured on",
        "saved at equal quality",
        FULL_COLUMN,
    ]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for regime, studies in REGIMES.items():
        of_regime = [
            cells
            for page, *cells in measured
            if page.rpartition("/")[2].removesuffix(".md") in studies
        ]
        if of_regime:
            lines.append(
                f"| **{regime}** | {' | '.join(map('<br>'.join, zip(*of_regime, strict=True)))} |"
            )
    return lines


def rules_table(rows: Iterable[tuple[str, str, Results]]) -> list[str]:
    """A row per task, given its name, its page and its results: what each rule saves."""
    columns = ["task", "epochs", "on all data", "seeds", *(title for title, _ in RULES.values())]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, page, results in rows:
        settings = results.settings
        ours = savings_of(AUTO, results)
        if ours is None or not ours.has_interval:
            continue
        full = next(row for row in results.summaries if row.arm == "full" and row.length == 1)
        metric = f"{settings.metric} {mean_and_deviation(full.metric, decimals(settings.margin))}"
        cells = [f"[{name}]({page})", str(settings.epochs), metric, str(ours.seeds)]
        cells += [saving_cell(rule, results) for rule in RULES]
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def savings_table(rows: Iterable[tuple[str, str, Results]]) -> list[str]:
    """Every arm of every comparison with lengths: what it saves, and what it takes to be as good as all data.

    An arm whose runs are all in an earlier row is not shown again.
    """
    columns = ["comparison", "arm", "seeds", "saved at equal quality", FULL_COLUMN]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    shown: set[Hashable] = set()
    for name, page, results in rows:
        for row in arm_savings(results):
            runs = {identity(run) for run in results.runs if run.arm == row.arm}
            if row.has_interval and not runs <= shown:
                shown |= runs
                cells = [f"[{name}]({page})", f"`{typed(row.arm)}`", str(row.seeds)]
                cells += [row.pooled_text, row.against_full]
                lines.append(f"| {' | '.join(cells)} |")
    return lines


def saving_cell(rule: str, results: Results) -> str:
    """What the arm that has one of the README's rules saves; of random pruning, also whose cost it has."""
    row = savings_of(rule, results)
    if row is None:
        return "–"
    cost = f", at the cost of `{results.settings.leader}`" if rule == RANDOM else ""
    return row.pooled_text + cost


def savings_of(rule: str, results: Results) -> ArmSavings | None:
    """The savings of the first arm that has one of the README's rules; None without one.

    For random pruning it is the one with another arm's cost, and as the rules are: in full batches.
    """
    _, names = RULES[rule]
    rows = [row for row in arm_savings(results) if row.arm.partition(":")[0] in names and row.seeds]
    if rule == RANDOM:
        arms = {row.arm: Arm(row.arm) for row in rows}
        rows = [row for row in rows if arms[row.arm].follows and arms[row.arm].shrink == "epoch"]
    return rows[0] if rows else None


def saving(point: Point | None) -> str:
    """The saving at equal quality, with its interval."""
    return "–" if point is None or point.saving is None else point.saving.text


def seconds_table(rows: Iterable[tuple[str, str, Results]]) -> list[str]:
    """Processor time saved next to sample passes saved, for each pruned arm at full length.

    Only runs that were made on the same machine as those on all data with the same seeds.
    """
    columns = [
        "task",
        "training",
        "passes saved",
        "processor time saved",
        "time saved / passes saved",
        "pruning took",
    ]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, page, results in rows:
        whole = [row for row in results.summaries if row.length == 1 and row.cpu_seconds]
        full = next(row for row in whole if row.arm == "full")
        for row in whole:
            if row is full or is_coreset(row.arm):
                continue
            per_pass = time_per_pass(row.arm, results)
            if len(per_pass) < len(row.seeds):
                continue
            saved = 1 - row.cpu_seconds / full.cpu_seconds
            cells = [
                f"[{name}]({page})",
                f"`{typed(row.arm)}`",
                f"{row.saved_fraction:.1%}",
                f"{saved:.1%}",
            ]
            cells.append(f"{saved / row.saved_fraction:.2f} ± {standard_error(per_pass):.2f}")
            cells.append(f"{row.overhead_seconds / row.seconds:.2%}")
            lines.append(f"| {' | '.join(cells)} |")
    return lines


def time_per_pass(arm: str, results: Results) -> list[float]:
    """Processor time saved divided by passes saved, against all data, of each seed at full length."""
    runs = [record for record in results.runs if record.length == 1]
    full = {
        (record.seed, record.machine): record.costs.cpu_seconds
        for record in runs
        if record.arm == "full"
    }
    return [
        (1 - record.costs.cpu_seconds / full[record.seed, record.machine]) / record.saved_fraction
        for record in runs
        if record.arm == arm and (record.seed, record.machine) in full
    ]


def standard_error(values: Sequence[float]) -> float:
    return statistics.stdev(values) / len(values) ** 0.5


def arms_table(results: Results) -> list[str]:
    """What each arm saves, from its lengths together, and what it takes to be as good as all data."""
    columns = ["arm", "seeds", "saved at equal quality", FULL_COLUMN]
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    names = {row.arm: name_of(row, results) for row in results.summaries if row.length == 1}
    for row in arm_savings(results):
        cells = (names[row.arm], str(row.seeds), row.pooled_text, row.against_full)
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def difference(point: Point | None, results: Results) -> str:
    """The paired difference from all data at full length, with its interval."""
    if point is None or point.to_full is None:
        return "–"
    return point.to_full.in_words(decimals(results.settings.margin))


def name_of(row: Summary, results: Results) -> str:
    """How a page calls an arm at a length."""
    epochs = f"{row.length * results.settings.epochs:.3g} epochs"
    if row.arm == "full":
        return f"all data, {epochs}"
    if row.arm == "short":
        return f"all data, as many sample passes as `{row.leader}`"
    name = NAMES.get(row.arm) or f"`{typed(row.arm)}`"
    if row.arm.partition(":")[0] == "random" and row.leader is not None:
        name = f"random pruning, as much as `{row.leader}`"
        name += ", as smaller batches" if row.arm.endswith(":shrink=batch") else ""
    return name if row.length == 1 else f"{name}, {epochs}"


def plain_name(arm: str) -> str:
    """An arm in a figure: the words of the README's table for the rules that have them, else as one types it."""
    if arm not in NAMES and arm not in ("random", "auto"):
        return typed(arm)
    rule = arm.partition(":")[0]
    return next(title for title, names in RULES.values() if rule in names).replace("`", "")


def typed(arm: str) -> str:
    """An arm as one types it, without the folders of a score file and the file of a rule."""
    return re.sub(r"scores=[^:]*/", "scores=", re.sub(r"^.*\.py:", "", arm))


def how_it_was_made(results: Results) -> str:
    """Seeds, grid and margin in one line."""
    settings = results.settings
    counts = [len(row.seeds) for row in results.summaries if row.arm not in unfinished(results)]
    fewest, most = min(counts), max(counts)
    seeds = "one seed"
    if most > 1:
        span = f"{most}" if fewest == most else f"{fewest} to {most}"
        seeds = f"{span} seeds (± is their standard deviation)"
    if fewest < len(settings.seeds):
        seeds += f" of {len(settings.seeds)}, the others not finished yet"
    margin = f"{settings.margin:g}"
    if unit := settings.unit:
        margin += f" {unit.removesuffix('s') if margin == '1' else unit}"
    parts = [f"{seeds}, a margin of {margin}"]
    rates = settings.learning_rates
    if len(rates) == 1:
        parts.append(f"learning rate {rates[0]:g} for every arm")
    elif settings.chosen_rates:
        has_choice = len(settings.lengths) > 1
        at = " at full length" if has_choice and settings.rate_length == 1 else ""
        grid = ", ".join(f"{rate:g}" for rate in rates)
        parts.append(f"each arm's learning rate from {grid} by validation splits{at}")
        at_edge = [
            f"`{typed(arm)}` {rate:g}"
            for arm, rate in settings.chosen_rates.items()
            if rate in (min(rates), max(rates))
        ]
        if at_edge:
            parts.append(f"an end of that grid was best for {', '.join(at_edge)}")
    return "; ".join(parts) + "."


def coreset_table(results: Results, paper: Mapping[str, str] | None = None) -> list[str]:
    """A row for each method of choosing a subset, a column for each share.

    ``paper`` has the paper's own figures by ``coreset:METHOD``.
    """
    digits = decimals(results.settings.margin)
    by_method = coresets_by_method(results)
    shares = sorted({share for cells in by_method.values() for share in cells}, reverse=True)
    columns = [f"{float(share):.0%} of the data" for share in shares]
    columns = ["chosen before training", *columns, "passes saved", "below random"]
    columns += ["in the paper"] if paper else []
    lines = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    chance = by_method.get("random", {})
    for method, cells in by_method.items():
        metrics = [cells[share].metric if share in cells else None for share in shares]
        words = [mean_and_deviation(metric, digits) if metric else "–" for metric in metrics]
        saved = ", ".join(
            f"{cells[share].saved_fraction:.0%}".replace("-", "−")
            for share in shares
            if share in cells
        )
        worse = [
            f"{float(share):.0%}"
            for share in shares
            if share in cells and share in chance and is_worse(cells[share], chance[share])
        ]
        row = [f"`{method}`", *words, saved, ", ".join(worse) or "–"]
        row += [paper.get(f"coreset:{method}", "–")] if paper else []
        lines.append(f"| {' | '.join(row)} |")
    return lines


def coresets_by_method(results: Results) -> dict[str, dict[str, Summary]]:
    """The rows of subsets chosen before training, by method and share."""
    by_method: dict[str, dict[str, Summary]] = {}
    for row in results.summaries:
        if is_coreset(row.arm):
            by_method.setdefault(method_of(row.arm), {})[share_of(row.arm)] = row
    return by_method


def is_coreset(arm: str) -> bool:
    return arm.startswith("coreset:")


def method_of(arm: str) -> str:
    """``el2n, 20 networks`` of ``coreset:el2n@0.3:networks=20``."""
    head, _, networks = arm.removeprefix("coreset:").partition(":networks=")
    method = head.partition("@")[0]
    return f"{method}, {networks} networks" if networks else method


def share_of(arm: str) -> str:
    return arm.partition("@")[2].partition(":")[0]


def is_worse(row: Summary, chance: Summary) -> bool:
    """In the mean: few seeds cannot tell more."""
    return row.metric is None or (
        chance.metric is not None and row.metric.mean < chance.metric.mean
    )
