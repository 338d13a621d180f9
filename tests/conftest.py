"""What every test relies on: a seed, and which files are tests."""

import gc
from importlib.util import find_spec

import pytest
import torch
from hypothesis import HealthCheck, settings

# Examples may take as long as they need (a busy machine is no failure), and are the same in every run.
settings.register_profile(
    "repeatable", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("repeatable")

collect_ignore = ["support"]  # helpers; the lab imports one of them as it does a user's file
# timm needs torchvision, whose presence would change what other packages here do: both live in a
# folder of their own, and `make test` runs timm's tests by themselves.
if find_spec("timm") is None:
    collect_ignore += ["integrations/test_timm.py", "integrations/test_timm_script.py"]
else:
    import torchvision_operators  # noqa: F401 - before anything imports torchvision
if find_spec("fastai") is None:  # as with timm
    collect_ignore += ["integrations/test_fastai.py"]
if find_spec("litdata") is None:
    collect_ignore += ["integrations/test_litdata.py"]
if find_spec("ultralytics") is None:
    collect_ignore += ["integrations/test_ultralytics.py", "integrations/test_ultralytics_ranks.py"]
else:
    import ultralytics_operators  # noqa: F401 - before anything imports ultralytics


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
