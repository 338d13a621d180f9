"""The size of a smoke run, which shows that everything works and takes seconds."""

from __future__ import annotations

SMOKE_TRAIN, SMOKE_TEST, SMOKE_EPOCHS, SMOKE_BATCH = 256, 128, 3, 32
