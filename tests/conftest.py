"""What every test relies on: a seed, and which files are tests."""

import gc
from importlib.util import find_spec

import hypothesis
import pytest
import torch
from hypothesis import settings

# Examples may take as long as they need: on a busy machine the default deadline of 200 ms fails.
hypothesis.settings.register_profile(
    "busy", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("busy")

collect_ignore = ["support"]  # helpers; the lab imports one of them as it does a user's file
# timm needs torchvision, whose presence would change what other packages here do: both live in a
# folder of their own, and `make test` runs timm's tests by themselves.
if find_spec("timm") is None:
    collect_ignore += ["integrations/test_timm.py", "integrations/test_timm_script.py"]
else:
    import torchvision_operators  # noqa: F401 - before anything imports torchvision
if find_spec("fastai") is None:  # as with timm
    collect_ignore += ["integrations/test_fastai.py"]


settings.register_profile("no seconds", deadline=None)  # a busy machine is no failure
settings.load_profile("no seconds")


def pytest_collection_finish():
    """Take what collection imported out of garbage collection.

    Trainers call gc.collect() at each start, which would go through all of these packages' objects each time: half
    of the tests' time was spent there.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)
