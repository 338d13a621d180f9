"""Without the packages of the tasks, as in the job `core` of CI, the other tests still run."""

from importlib.util import find_spec

_NEEDED = {
    "transformers": ("contrastive", "language", "masked_autoencoding"),
    "diffusers": ("diffusion",),
}
collect_ignore = [
    f"test_scoring_{task}.py"
    for package, tasks in _NEEDED.items()
    for task in tasks
    if find_spec(package) is None
]
