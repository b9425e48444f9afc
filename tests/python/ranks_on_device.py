"""What each rank of test_ranks_on_device.py runs: `python ranks_on_device.py BUILD DEVICE OUT` leaves its results in OUT."""

import logging
import os
import sys
from pathlib import Path

import torch
from torch import nn

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
ROWS, STEPS = 8, 12


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 16), nn.GELU())
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.body(x))


def batches():
    source = torch.Generator().manual_seed(1)
    return [torch.randn(ROWS, 6, generator=source).chunk(WORLD)[RANK] for _ in range(STEPS)]


def train(stepc, device, parallel):
    """An unchanged loop on this rank's rows."""
    torch.manual_seed(RANK)  # rank 0's parameters count
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    plain = model
    model, optimizer = stepc.accelerate(model, optimizer, config=stepc.Config(mode="exact", parallel=parallel))
    losses = []
    for x in batches():
        loss = model(x.to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    state = {name: one.detach().cpu() for name, one in plain.state_dict().items()}
    return {"losses": losses, "state": state, "replays": stepc.stats(plain)["replays"], "warnings": stepc.stats(plain)["warnings"]}


def averaged(stepc, device):
    """Means of tensors of several dtypes: of all ranks the same, and what arithmetic says."""
    group = stepc._C.ranks({})
    made = [torch.full((3, 5), float(RANK + 1), device=device, dtype=dtype)
            for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16)]
    made.append(torch.full((1 << 20,), float(RANK + 1)).to(device))
    group.average(made, "\n".join("abcde"))
    shared = [torch.full((4,), float(RANK), device=device), torch.full((2, 3), float(RANK), device=device).t()]
    group.share(shared, [0, WORLD - 1])
    return {"means": [one.cpu() for one in made], "shared": [one.cpu() for one in shared], "differ": group.differ(made)}


def whole_step(stepc, device):
    """What is said of a step, where it cannot run; else its losses."""
    model = nn.Linear(6, 4).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    called = stepc.accelerate(step, config=stepc.Config(parallel={"dp_replicate": WORLD}))
    try:
        return [called(x.to(device)).item() for x in batches()]
    except stepc.UserError as error:
        return str(error)


def main(build, name, out):
    sys.path.insert(0, str(Path(__file__).parent))
    sys.path.insert(0, build)
    import stepc

    logging.basicConfig()
    device = name
    if name == "emulated":
        import emulated

        device = emulated.device()
    elif name == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    results = {"averaged": averaged(stepc, device)}
    if WORLD > 1:
        results["ddp"] = train(stepc, device, {"dp_replicate": WORLD})
        results["zero"] = train(stepc, device, {"dp_shard": WORLD, "zero": 1})
        results["step"] = whole_step(stepc, device)
    torch.save(results, Path(out) / f"rank-{RANK}.pt")


main(*sys.argv[1:])
