"""What test_virtual_cuda.py runs, by the card that a process shows: python virtual_cuda_cases.py CARD; each prints JSON."""

import collections
import json
import sys

import torch

import stepc
from harness import source_of
from models import MODELS, cast

SIX = ("llama", "gpt2", "bert", "vit", "t5", "whisper")


def build_step(model, loss_of, precision, device, optimizer=None):
    """A training program that says on which device it trains, and nothing else of it."""
    model = model.to(device, torch.bfloat16 if precision == "bfloat16" else None)
    for part in model.modules():  # what draws is another kernel on each device
        if isinstance(part, torch.nn.Dropout):
            part.p = 0.0
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step(batch):
        batch = {key: value.to(device, non_blocking=True) for key, value in batch.items()}
        with torch.autocast(device, dtype=torch.bfloat16, enabled=precision == "autocast"):
            loss = loss_of(model, batch)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def names_in(text):
    """How often each call is named."""
    return dict(collections.Counter(word for word in text.replace("(", " ").split() if word.startswith("aten::")))


def numbers_of(plan):
    fast, exact = plan.plan_for("h100"), plan.plan_for("h100", mode="exact")
    return {"obstacle": plan.obstacle, "calls": names_in(plan.graph_text()), "opaque": names_in(fast.schedule_text()),
            "seconds": fast.seconds, "bytes": fast.needed_bytes, "exact seconds": exact.seconds,
            "exact bytes": exact.needed_bytes,
            "copies": fast.schedule_text().count("the device has none of the host's memory"),
            "first lines": fast.schedule_text().splitlines()[:2]}


def plans(device, precision="autocast"):
    out = {}
    with stepc.virtual(device=device):
        for name in SIX:
            model = MODELS[name]
            step = build_step(model.build(), model.loss_of, precision, device)
            batch = cast(model.batch(source_of(0), False), torch.bfloat16 if precision == "bfloat16" else torch.float32)
            out[name] = numbers_of(stepc.plan(step, batch))
    return out


def what_torch_says():
    """Every question that a program asks before it trains, and GradScaler's path, default and fused optimizers."""
    said = {}
    with stepc.virtual(device="cuda", target="h200"):
        cuda = torch.cuda
        cuda.manual_seed(3)
        torch.manual_seed(4)
        cuda.set_device(0)
        cuda.synchronize()
        cuda.empty_cache()
        said["questions"] = [cuda.is_available(), cuda.device_count(), cuda.current_device(), cuda.get_device_name(),
                             cuda.get_device_capability(), cuda.is_bf16_supported(), cuda.memory_allocated(),
                             cuda.get_device_properties(0).multi_processor_count, str(torch.zeros(3, device="cuda").device),
                             str(torch.ones(2).cuda().device), str(torch.accelerator.current_accelerator())]
        said["known"] = [torch.arange(4, device="cuda:0").sum().item(), torch.tensor([1.5, 2.5]).cuda().tolist(),
                         bool((torch.arange(3).to("cuda") < 2).all()), torch.arange(6, device="cuda").view(2, 3)[1].tolist()]
        state = cuda.get_rng_state()
        torch.rand(4, device="cuda")
        said["generator moves"] = not torch.equal(state, cuda.get_rng_state())
        with cuda.device(0), cuda.stream(cuda.Stream()):
            cuda.Event(enable_timing=True).record()
        for name, make in (("default", torch.optim.AdamW), ("fused", lambda p: torch.optim.AdamW(p, fused=True)),
                           ("sgd", lambda p: torch.optim.SGD(p, lr=0.1))):
            model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.RMSNorm(256), torch.nn.Dropout(0.1),
                                        torch.nn.Linear(256, 64)).cuda()
            optimizer, scaler = make(model.parameters()), torch.amp.GradScaler("cuda", enabled=name == "fused")

            def step(x):
                with torch.autocast("cuda", dtype=torch.float16):
                    loss = model(x.to("cuda")).square().mean()
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                return loss

            plan = stepc.plan(step, torch.zeros(8, 64))
            said[name] = numbers_of(plan)
    return said


def attention(card):
    """Which kernel eager PyTorch would take there."""
    taken = {}
    with stepc.virtual(device="cuda", target=card):
        def kernel(dtype=torch.bfloat16, head=64, dropout=0.0, mask=False, causal=False, length=48, groups=1, learns=False):
            sizes = [(2, heads, length, head) for heads in (4, 4 // groups, 4 // groups)] + [(length, length)] * mask
            operands = torch.nn.ParameterList(torch.zeros(size, dtype=dtype, device="cuda") for size in sizes)
            operands[-1].requires_grad_(learns or not mask)

            def step():
                out = torch.nn.functional.scaled_dot_product_attention(
                    *operands[:3], operands[3] if mask else None, dropout, causal, enable_gqa=groups > 1)
                out.sum().backward()
                operands.zero_grad()

            plan = stepc.plan(step)
            assert plan.obstacle == "", plan.obstacle
            plan.plan_for().schedule_text()
            return [name for name in names_in(plan.graph_text()) if "attention" in name]

        for name, arguments in {"plain": {}, "causal": {"causal": True}, "masked": {"mask": True}, "float32": {"dtype": torch.float32},
                                "odd": {"dtype": torch.float32, "mask": True, "length": 47}, "dropped": {"dropout": 0.1},
                                "dropped by 16ths": {"dropout": 0.125}, "grouped": {"groups": 2}, "wide": {"head": 160},
                                "learns": {"mask": True, "learns": True}, "narrow": {"head": 4}}.items():
            taken[name] = kernel(**arguments)
    return taken


def refusal(run):
    try:
        run()
    except stepc.UserError as error:
        return str(error)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "it went through"


def refusals():
    """What cannot be done, by name; all in one process."""
    said = {}
    model = torch.nn.Linear(64, 64)

    def in_region(run):
        def entered():
            with stepc.virtual(device="cuda"):
                run()

        return refusal(entered)

    def nested():
        with stepc.virtual(device="cuda"):
            pass

    said["other device"] = refusal(lambda: stepc.virtual(device="xpu"))
    said["no such card"] = refusal(lambda: stepc.virtual(device="cuda", target="v100").__enter__())
    version, torch.version.cuda = torch.version.cuda, None
    said["no CUDA"] = in_region(lambda: None)
    torch.version.cuda = version
    said["second"] = in_region(lambda: torch.zeros(3, device="cuda:1"))
    said["moved to second"] = in_region(lambda: model.to("cuda:1"))
    said["set second"] = in_region(lambda: torch.cuda.set_device(1))
    said["read"] = in_region(lambda: model.cuda()(torch.zeros(2, 64, device="cuda")).sum().item())
    said["listed"] = in_region(lambda: model(torch.zeros(2, 64, device="cuda")).tolist())
    said["mixed"] = in_region(lambda: model(torch.zeros(2, 64)))
    said["nested"] = in_region(nested)
    said["accelerated"] = in_region(lambda: stepc.accelerate(lambda x: model(x).sum()))
    said["timed"] = in_region(lambda: torch.cuda.Event().elapsed_time(torch.cuda.Event()))
    said["memory"] = in_region(lambda: stepc.materialise(model, {"weight": torch.zeros(64, 64), "bias": torch.zeros(64)}))
    said["afterwards"] = refusal(lambda: model.weight.sum())
    said["made afterwards"] = refusal(lambda: torch.zeros(2, 64, device="cuda"))
    said["another card"] = refusal(lambda: stepc.virtual(device="cuda", target="a100").__enter__())
    said["the CPU goes on"] = torch.ones(3).sum().item()

    def step(x):
        return model(x.cuda()).sum()

    said["plan afterwards"] = stepc.plan(step, torch.zeros(2, 64)).obstacle
    return said


def beside_another_device():
    import emulated

    emulated.device()
    return refusal(lambda: stepc.virtual(device="cuda").__enter__())


CARDS = {
    "h100": lambda: {"refusals": refusals(), "plans": plans("cuda")},
    "h200": lambda: {"questions": what_torch_says(), "attention": attention("h200")},
    "a100": lambda: {"attention": attention("a100")},
    "none": lambda: {"refusal": beside_another_device()},
}
if __name__ == "__main__":
    print(json.dumps(CARDS[sys.argv[1]]()))
