"""A real comparison, shared by the tests of what is made of one."""

import pytest

from lab_runs import compare


@pytest.fixture(scope="session")
def comparison(tmp_path_factory):
    """The folder of a real comparison, as small as they come: three arms, two lengths, two seeds."""
    out = tmp_path_factory.mktemp("comparison")
    compare(
        out,
        "full,random,infobatch",
        2,
        "fashion",
        lengths=(0.5, 1.0),
        smoke=True,
        command="infobatch compare fashion --lengths 0.5,1 --seeds 2 --smoke",
    )
    return out
