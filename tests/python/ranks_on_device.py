"""What each rank of test_ranks_on_device.py runs: `python ranks_on_device.py BUILD DEVICE OUT` leaves its results in OUT."""

import contextlib
import logging
import os
import sys
from pathlib import Path

import torch
from torch import nn

sys.path[:0] = [str(Path(__file__).parent), sys.argv[1]]
from test_fast_on_device import Decoder, tokens

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


WHOLE_STEPS = 5
SHARDED = {"dp_shard": 2, "zero": 3}
WHOLE = {
    "dp, batches of the host": {"parallel": {"dp_replicate": 2}, "batches_on": "cpu"},
    "zero 1": {"parallel": {"dp_shard": 2, "zero": 1}, "device_graphs": False},
    "zero 2, dropout": {"parallel": {"dp_shard": 2, "zero": 2}, "dropout": 0.3},
    "zero 3": {"parallel": SHARDED},
    "tp": {"parallel": {"tp": 2}},
    "cp": {"parallel": {"cp": 2, "context": "ring"}},
    "micro-batches, batches of the host": {"parallel": {"dp_replicate": 2}, "micro_batches": 2, "batches_on": "cpu"},
    "micro-batches, zero 1": {"parallel": {"dp_shard": 2, "zero": 1}, "micro_batches": 2},
    "micro-batches, zero 3, dropout": {"parallel": SHARDED, "micro_batches": 2, "dropout": 0.3},
    "micro-batches, tp": {"parallel": {"tp": 2}, "micro_batches": 2},
    "stages": {"parallel": {"pp": 2}, "micro_batches": 2},
    "stages, zb-h1, batches of the host": {"parallel": {"pp": 2, "order": "zb-h1"}, "micro_batches": 4, "batches_on": "cpu"},
    "stages, dropout": {"parallel": {"pp": 2}, "micro_batches": 2, "dropout": 0.3},
}


WEIGHED = {  # by the rates of a card that is known
    "auto": {"parallel": {"strategy": "auto"}},
    "overlap": {"parallel": {**SHARDED, "overlap": True}},
    "context": {"parallel": {"cp": 2, "context": "auto"}},
    "budget": {"parallel": SHARDED, "memory_budget": "auto"},
    "budget of stages": {"parallel": {"pp": 2}, "micro_batches": 2, "memory_budget": "auto"},
}
OVERLAPPED = {  # of tensors that take an exchange some time
    "dp": {"parallel": {"dp_replicate": 2}},
    "zero 3": {"parallel": SHARDED},
    "zero 3, micro-batches": {"parallel": SHARDED, "micro_batches": 2},
}
OF_FOUR = {"stages and dp": {"parallel": {"pp": 2, "dp_shard": 2, "zero": 1}, "micro_batches": 2}}
REFUSED = {**WEIGHED, "three micro-batches": {"parallel": {"dp_replicate": 2}, "micro_batches": 3}}


class WholeStep:
    """A decoder with its whole step on ranks."""

    def __init__(self, stepc, device, parallel, dropout=0.0, batches_on=None, layers=1, sizes=None, **config):
        torch.manual_seed(0)
        self.stepc, self.batches_on = stepc, batches_on or device
        self.parts = parallel.get("dp_replicate", 1) * parallel.get("dp_shard", 1)  # of a batch: this rank has one
        self.model = Decoder(dropout, layers=max(layers, parallel.get("pp", 1)), **(sizes or {})).to(device)
        optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

        def step(ids):
            loss = self.model(ids.to(device))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        self.step = stepc.accelerate(step, config=stepc.Config(**{"parallel": parallel, "device_kernels": True, **config}))

    def losses(self, numbers):
        rows = [tokens(number, ROWS).chunk(self.parts)[RANK % self.parts] for number in numbers]
        return [self.step(ids.to(self.batches_on)).item() for ids in rows]

    def run(self):
        losses = self.losses(range(WHOLE_STEPS))
        with self.stepc.full_parameters(self.model):
            state = {name: one.detach().cpu().clone() for name, one in self.model.state_dict().items()}
        return {"losses": losses, "state": state, "stats": dict(self.step.stats), "report": self.step.report(),
                "predicted": self.step.predicted_seconds, "text": self.step.schedule_text()}


@contextlib.contextmanager
def an_h100(device):
    """The emulated device says that it is one."""
    if "emulated" in device:
        os.environ["EMULATED_CARD"] = "90 85520809984 85520809984 NVIDIA H100 80GB HBM3"
    yield
    os.environ.pop("EMULATED_CARD", None)


def overlapped(stepc, device, parallel, **how):
    """Exchanges that block, and exchanges beside the computation."""
    return [WholeStep(stepc, device, parallel={**parallel, "overlap": overlap}, layers=2, sizes={"vocabulary": 1024, "width": 64},
                      **how).run() for overlap in (False, True)]


def large_batch_comes(stepc, device):
    """Once, and what is planned moves to memory that is large enough."""
    one, losses, launched = WholeStep(stepc, device, {"dp_shard": 2, "zero": 1}, micro_batches=2), [], []
    for number in range(20):
        rows = 1024 if number == 6 else ROWS
        losses.append(one.step(tokens(number, rows).chunk(WORLD)[RANK].to(device)).item())
        launched.append(one.step.stats["device_graphs"])
    return {"losses": losses, "launched": launched, "stats": dict(one.step.stats)}


def refused(stepc, device, parallel, **config):
    try:
        WholeStep(stepc, device, parallel, **config).losses(range(1))
    except stepc.UserError as error:
        return str(error)


def whole_steps(stepc, device, out):
    results = {"a large batch comes": large_batch_comes(stepc, device)}  # before anything large has run
    results |= {name: WholeStep(stepc, device, **how).run() for name, how in WHOLE.items()}
    with an_h100(device):
        results |= {name: WholeStep(stepc, device, **how).run() for name, how in WEIGHED.items()}
        if device != "cpu":
            results["overlapped"] = {name: overlapped(stepc, device, **how) for name, how in OVERLAPPED.items()}
    for name, how in RESUMED.items():
        first = WholeStep(stepc, device, verify="off", **how)
        first.losses(range(2))
        first.step.save(out / f"saved {name}")
        results[f"{name} went on"] = {"losses": first.losses(range(2, 4))}
    return results


RESUMED = {
    "in one piece": {"parallel": SHARDED},
    "in stages": {"parallel": {"pp": 2}, "micro_batches": 2, "layers": 2},
    "with dropout": {"parallel": {"dp_shard": 2, "zero": 2}, "micro_batches": 2, "dropout": 0.3},
}


def resumed(stepc, device, saved):
    """On other devices than those that saved, and on another mesh, but for what draws."""
    results = {}
    for name, how in RESUMED.items():
        torch.manual_seed(9)  # the checkpoint's state counts
        elsewhere = {"parallel": {"dp_shard": 2, "zero": 1}, "layers": how.get("layers", 1)}
        step = WholeStep(stepc, device, verify="off", **(how if "dropout" in name else elsewhere))
        step.step.load(Path(saved) / f"saved {name}")
        results[name] = step.losses(range(2, 4))
    return results


def main(build, name, out, saved=None):
    import stepc

    out = Path(out)
    logging.basicConfig()
    device = name
    if name == "emulated":
        import emulated

        device = f"{emulated.device()}:{RANK}"
    elif name == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if saved is not None:
        return torch.save(resumed(stepc, device, saved), out / f"rank-{RANK}.pt")
    if WORLD == 4:
        return torch.save({name: WholeStep(stepc, device, **how).run() for name, how in OF_FOUR.items()}, out / f"rank-{RANK}.pt")
    results = {"averaged": averaged(stepc, device)}
    if WORLD > 1:
        results["ddp"] = train(stepc, device, {"dp_replicate": WORLD})
        results["zero"] = train(stepc, device, {"dp_shard": WORLD, "zero": 1})
        results["whole"] = whole_steps(stepc, device, out)
        results["refused"] = {what: refused(stepc, device, **config) for what, config in REFUSED.items()}
    torch.save(results, out / f"rank-{RANK}.pt")


main(*sys.argv[1:])
