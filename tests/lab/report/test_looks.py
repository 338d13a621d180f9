"""The style of an arm, the same in every figure."""

from infobatch.lab.report.looks import looks_of


def numbers(*arms):
    return [look.number for look in looks_of(arms).values()]


def test_a_rule_looks_the_same_in_every_comparison():
    assert numbers("full", "auto") == [0, 4]
    assert numbers("full", "random", "infobatch", "quantile", "auto") == [0, 1, 2, 3, 4]
    assert numbers("full", "auto", "mean:smoothing=0.7", "random:delta=1.0") == [0, 4, 2, 1]


def test_other_arms_have_what_is_left():
    assert numbers("full", "auto:shrink=batch", "auto", "seta") == [0, 7, 4, 1]
    many = numbers("full", *(f"my_rules.py:Rule{number}" for number in range(9)))
    assert sorted(many) == list(range(10)), "no two look alike"
