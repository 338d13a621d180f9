"""The ranks of a job: how they divide an epoch, and what they exchange."""

from infobatch.distributed.checkpoint import Checkpointable
from infobatch.distributed.communicator import Communicator
from infobatch.distributed.ranks import Ranks

__all__ = ["Checkpointable", "Communicator", "Ranks"]
