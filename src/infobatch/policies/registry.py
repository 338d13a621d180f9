"""The rules by name. Imports nothing of them, so that the command line can list them without torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from infobatch.registry import Entry, Registry

if TYPE_CHECKING:
    from infobatch.policies.base import Policy


def _rule(target: str, summary: str) -> Entry:
    return Entry(f"infobatch.policies.{target}", summary)


# Each is a dataclass in a file with the same name; the line is the first of its docstring.
POLICIES: Registry[type[Policy], Entry] = Registry(
    {
        "mean": _rule(
            "mean:MeanPrune",
            "Prune a share ``ratio`` of the samples whose score is below the mean of all scores.",
        ),
        "quantile": _rule(
            "quantile:QuantilePrune",
            "Prune by bands of the score's quantiles; ``bands`` are (upper quantile, ratio), rising.",
        ),
        "random": _rule(
            "random:RandomPrune",
            "Prune a share ``ratio`` of all samples that were seen, chosen at random.",
        ),
        "none": _rule(
            "none:NoPrune",
            "Keep every sample in every epoch, with weight 1: the full-data baseline.",
        ),
        "auto": _rule(
            "auto:AutoPrune",
            "The noise budget with the settings that our search chose: a fifth more noise, in every epoch.",
        ),
        "noise": _rule(
            "noise:NoisePrune",
            "Leave out as many samples as add at most ``tau`` to the noise of the gradient.",
        ),
        "importance": _rule(
            "importance:ImportancePrune",
            "Keep a sample with probability p = min(1, max(floor, c · g)), for a given number of samples.",
        ),
        "epsilon_greedy": _rule(
            "baselines.epsilon_greedy:EpsilonGreedyPrune",
            "Keep the samples with the highest average loss, and a share ``epsilon`` at random from the rest.",
        ),
        "ucb": _rule(
            "baselines.ucb:UcbPrune",
            "Keep the samples whose average loss plus ``confidence`` times its variance is highest.",
        ),
        "dyn_unc": _rule(
            "baselines.dyn_unc:DynUncPrune",
            "Keep the samples whose probability of the label varies most over the epochs.",
        ),
        "rs2": _rule(
            "baselines.rs2:Rs2Prune",
            "Keep the samples that were visited least often, chosen at random among equals.",
        ),
        "kakurenbo": _rule(
            "baselines.kakurenbo:KakurenboPrune",
            "Hide the samples with the lowest losses that are classified correctly and with confidence.",
        ),
        "seta": _rule(
            "baselines.seta:SetaPrune",
            "Keep a window of groups of similar losses that slides from easy to hard, less a random share.",
        ),
        "order_dp": _rule(
            "baselines.order_dp:OrderDpPrune",
            "Draw a share of the samples at random and keep those of them with the highest losses.",
        ),
        "repb": _rule(
            "baselines.repb:RepbPrune",
            "Prune a share below the mean loss, and weigh a sample by epochs so far over its visits so far.",
        ),
        "ies": _rule(
            "baselines.ies:IesPrune",
            "Leave out the samples whose loss has settled into a straight line.",
        ),
        "afss": _rule(
            "baselines.afss:AfssPrune",
            "Keep a few of the images in which precision and recall are high, and all in which they are low.",
        ),
        "rcap": _rule(
            "baselines.rcap:RcapPrune",
            "Give each class a budget by its loss, and within a class keep hard samples more often.",
        ),
    }
)
