"""stepc: run a PyTorch training step from a plan.

    import stepc

    def train_step(batch):
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = stepc.accelerate(train_step)
    for batch in loader:
        loss = step(batch)

The first calls run the step eagerly and record it. Later calls replay it from memory that was planned before: by
default with fused kernels, as accurate as eager, and with Config(mode="exact") bit-equal to eager. A step that a
recording cannot hold runs eagerly, with one warning that gives the reason.
"""

import torch
from stepc.built_for import refusal

if refusal(torch.__version__):
    raise ImportError(refusal(torch.__version__))

from stepc._C import InternalError, LostRank, RankFailed, UserError
from stepc.accelerated import Accelerated
from stepc.calibration import calibrate
from stepc.config import Config
from stepc.door import accelerate
from stepc.loader import AsyncLoader
from stepc.loop import graph_text, report, schedule_text, stats
from stepc.op_rules import op_rule
from stepc.profile import Profile
from stepc.ranks import distributed_state, full_parameters
from stepc.shapes import Shapes
from stepc.virtual import Plan, materialise, plan, virtual

__version__ = "0.1.0"
__all__ = [
    "Accelerated",
    "AsyncLoader",
    "Config",
    "InternalError",
    "LostRank",
    "Plan",
    "Profile",
    "RankFailed",
    "Shapes",
    "UserError",
    "accelerate",
    "calibrate",
    "distributed_state",
    "full_parameters",
    "graph_text",
    "materialise",
    "op_rule",
    "plan",
    "report",
    "schedule_text",
    "stats",
    "virtual",
]
