"""What each rank of test_on_ranks.py runs: `python ranks_cases.py BUILD OUT GROUP CASE...` leaves what every case gave in OUT.

GROUP is "own" for a program that has torch.distributed initialised, "launched" for one that has not.
"""

import contextlib
import logging
import math
import os
import random
import sys
from pathlib import Path

import torch
import transformers

VOCABULARY, ROWS, LENGTH, STEPS = 64, 4, 8, 3
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def gpt2(dropout=0.0, layers=1):
    """All in the type of its parameters: sums of float64."""
    rates = {name: dropout for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop")}
    config = transformers.GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=layers, n_head=4, n_positions=LENGTH,
                                     use_cache=False, **rates)
    return transformers.GPT2LMHeadModel(config)


def llama():
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=1,
                                      num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH)
    return transformers.LlamaForCausalLM(config)


def batches(steps=STEPS, rows=ROWS):
    source = torch.Generator().manual_seed(1)
    return [torch.randint(VOCABULARY, (rows, LENGTH), generator=source) for _ in range(steps)]


def rows_of(batch, parallel):
    """This rank's, as a DistributedSampler over the data axes gives them."""
    axes = parallel if isinstance(parallel, dict) else {}
    beside, of_stage = axes.get("tp", 1) * axes.get("cp", 1), WORLD // axes.get("pp", 1)
    return batch.chunk(of_stage // beside)[RANK % of_stage // beside]


class Training:
    """A model with its optimizer and scheduler, and the step that a person would write."""

    def __init__(self, model=gpt2, optimizer=None, seed=0):
        torch.manual_seed(seed)
        self.model = model()
        self.optimizer = (optimizer or (lambda p: torch.optim.AdamW(p, lr=1e-2)))(self.model.parameters())
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, max_lr=1e-2, total_steps=20,
                                                             cycle_momentum="betas" in self.optimizer.defaults)

    def step(self, ids):
        logits = self.model(input_ids=ids).logits[:, :-1]
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return {"loss": loss.detach(), "norm": norm}

    def run(self, step, given):
        out = []
        for batch in given:
            out.append([one.item() for one in step(batch).values()])
            self.scheduler.step()
        return out

    def state(self):
        states = [self.optimizer.state[one] for one in self.model.parameters()]
        return {**{name: one.detach().clone() for name, one in self.model.state_dict().items()},
                **{f"{at}.{name}": one.clone() for at, state in enumerate(states) for name, one in state.items()
                   if isinstance(one, torch.Tensor)}}


def on_ranks(training, parallel, **config):
    import stepc

    return stepc.accelerate(training.step, config=stepc.Config(parallel=parallel, **config))


def beside_one(parallel, model=gpt2, optimizer=None, step_of=lambda step: None, **config):
    """Losses and norms, and the state at the end, of eager on all rows and of the ranks."""
    import stepc

    alone, training = Training(model, optimizer), Training(model, optimizer)
    wanted = alone.run(alone.step, batches())
    step = on_ranks(training, parallel, **config)
    step_of(step)
    given = batches() if config.get("batch") == "global" else [rows_of(one, parallel) for one in batches()]
    got = training.run(step, given)
    with stepc.full_parameters(training.model, training.optimizer):
        whole = alone.state()
        return {"wanted": wanted, "got": got, "wanted_state": whole, "got_state": training.state(),
                "whole_bytes": sum(one.nbytes for one in whole.values()),
                "stats": {name: step.stats[name] for name in ("plans", "replays", "eager_calls", "known_updates",
                                                              "state_bytes", "planned_peak_bytes", "verifications",
                                                              "warnings")}}


def refused(run):
    """What a person reads."""
    import stepc

    try:
        run()
    except stepc.UserError as error:
        return str(error)
    return "not refused"


class Attending(torch.nn.Module):
    """Causal attention of grouped heads as PyTorch's own call, at any length, all in the type of its parameters."""

    def __init__(self, heads=4, key_heads=2, size=4):
        super().__init__()
        self.heads, self.key_heads, self.size = heads, key_heads, size
        width = heads * size
        self.embedding, self.places = torch.nn.Embedding(VOCABULARY, width), torch.nn.Embedding(64, width)
        self.queries, self.keys, self.values = (torch.nn.Linear(width, n * size) for n in (heads, key_heads, key_heads))
        self.out = torch.nn.Linear(width, VOCABULARY)

    def forward(self, input_ids):
        rows, length = input_ids.shape
        x = self.embedding(input_ids) + self.places(torch.arange(length))
        cut = lambda made, heads: made.view(rows, length, heads, self.size).transpose(1, 2)
        seen = torch.nn.functional.scaled_dot_product_attention(
            cut(self.queries(x), self.heads), cut(self.keys(x), self.key_heads), cut(self.values(x), self.key_heads),
            is_causal=True, enable_gqa=True)
        x = x + seen.transpose(1, 2).reshape(rows, length, -1)
        return transformers.modeling_outputs.CausalLMOutput(logits=self.out(x))


# ---- cases

KINDS = {
    "ddp": "ddp",
    "fsdp": "fsdp",
    "zero1": {"dp_shard": -1, "zero": 1},
    "tp": {"tp": 2},
    "cp": {"cp": 2},
    "auto": "auto",
}
CASES = {f"kind {name}": (lambda parallel=parallel: beside_one(parallel)) for name, parallel in KINDS.items()}

# These need torch.distributed initialised, or initialise it themselves, at the address where stepc's ranks have met.
WITH_A_GROUP = ("torchs_checkpoints", "trainer")
ON_FOUR_RANKS = ("means_along_the_sequence",)


def case(function):
    CASES[function.__name__] = function
    return function


@case
def global_batch():
    return beside_one("fsdp", batch="global")


@case
def auto_of_the_whole_batch():
    """The axes are chosen, tp among them."""
    steps = []
    out = beside_one("auto", batch="global", step_of=steps.append)
    return out | {"chosen": [line for line in steps[0].report().splitlines() if line.startswith(("  chosen", "  or "))]}


@case
def auto_in_stages():
    """A pipeline is asked for; how many micro-batches, and the rest of the mesh, are chosen."""
    steps = []
    out = beside_one({"strategy": "auto", "pp": 2}, lambda: gpt2(layers=3), batch="global", step_of=steps.append)
    return out | {"report": steps[0].report(), "order": refused(lambda: on_ranks(Training(lambda: gpt2(layers=3)), {
        "strategy": "auto", "pp": 2, "order": "dualpipe-v"}, batch="global", micro_batches=2)(batches()[0]))}


@case
def auto_in_micro_batches():
    steps = []
    out = beside_one("auto", micro_batches=2, step_of=steps.append)
    return out | {"report": steps[0].report()}


@case
def auto_refused():
    import stepc

    def called(parallel, **config):
        training = Training()
        return refused(lambda: on_ranks(training, parallel, **config)(batches()[0]))

    training = Training()
    return {"rows": called({"strategy": "auto", "tp": 2}), "pins": called({"strategy": "auto", "dp_shard": 3}),
            "stages": called({"strategy": "auto", "chunks": 2}, batch="global"),
            "own_rows": called({"strategy": "auto", "pp": 2}),
            "too_many": called({"strategy": "auto", "pp": 2, "chunks": 8}, batch="global"),
            "memory": called("auto", memory_budget="1KiB"),
            "loop": refused(lambda: stepc.accelerate(training.model, config=stepc.Config(parallel="auto")))}


@case
def reduced():
    """float32 gradients on their way as bfloat16."""
    training = Training()
    step = on_ranks(training, {"dp_replicate": 2, "reduce": "bfloat16"})
    training.run(step, [rows_of(one, "ddp") for one in batches()])
    return {"is_narrow": ": bf16[" in step.schedule_text(), "replays": step.stats["replays"]}


@case
def pinned():
    return beside_one({"tp": 2}, shard={"*.mlp.c_proj.weight": {1: "tp"}})


@case
def numbers():
    """Floats that the step reads are what they are on one rank, on every rank, returned or given to an operator."""

    def read(training):
        def step(ids):
            found = Training.step(training, ids)
            loss = found["loss"].item()
            return {"loss": found["norm"] * loss, "norm": {"of": [loss, found["norm"].item()]}}

        return step

    def run(training, step, given):
        out = []
        for batch in given:
            found = step(batch)
            out.append([found["loss"].item(), *found["norm"]["of"]])
            training.scheduler.step()
        return out

    alone, training = Training(), Training()
    wanted = run(alone, read(alone), batches())
    training.step = read(training)
    got = run(training, on_ranks(training, "fsdp"), [rows_of(one, "fsdp") for one in batches()])
    return {"wanted": wanted, "got": got}


class Deciding:
    """A small model whose step decides by what it reads; the target of one row may be infinite, which one rank alone has."""

    def __init__(self, kind, narrow=None):
        torch.manual_seed(0)
        self.kind, self.narrow = kind, narrow
        self.model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4))
        if narrow:
            self.model.float()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)

    def step(self, x, y):
        with torch.autocast("cpu", dtype=self.narrow or torch.bfloat16, enabled=self.narrow is not None):
            loss = torch.nn.functional.mse_loss(self.model(x), y)
        return getattr(self, self.kind)(loss)

    def update(self, loss):
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach(), norm

    def scaled(self, loss):
        """As PyTorch's page on mixed precision has it."""
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()
        return loss.detach(), norm

    def scale_read(self, loss):
        return *self.scaled(loss), self.scaler.get_scale()

    def skips(self, loss):
        if not math.isfinite(loss.item()):
            return loss.detach(), torch.zeros_like(loss)
        return self.update(loss)

    def compares(self, loss):
        """By the loss of all ranks' rows: on each rank alone it would go other ways."""
        if loss.item() > 1.0:
            loss = 0.1 * loss
        return *self.update(loss), 2 * loss.item()

    def by_norm(self, loss):
        loss.backward()
        norm = torch.linalg.vector_norm(torch.stack([one.grad.norm() for one in self.model.parameters()]))
        if norm < 0.6:  # a truth that is read
            self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach(), norm

    def clips_itself(self, loss):
        """A number that the step makes of one that it reads, and another one that it reads behind that."""
        loss.backward()
        norm = torch.linalg.vector_norm(torch.stack([one.grad.norm() for one in self.model.parameters()])).item()
        if norm > 0.1:
            for one in self.model.parameters():
                one.grad.mul_(0.1 / (norm + 1e-6))
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            weight = self.model[0].weight.abs().mean().item()
        return loss.detach(), norm, max(weight, 1e-3)

    def asserts(self, loss):
        assert torch.isfinite(loss), f"the loss is {loss.item()}"
        return self.update(loss)

    def by_rank(self, loss):
        if loss.item() > 0 and RANK == 1:
            loss = 2 * loss
        return self.update(loss)

    def run(self, step, given):
        out = []
        for batch in given:
            try:
                out.append([float(one) for one in step(*batch)])
            except AssertionError as error:
                out.append(str(error))
        return out


DECISIONS = ("scaled", "scale_read", "skips", "compares", "by_norm", "clips_itself", "asserts")


def decided(kind, parallel, narrow=None, **config):
    """Beside one process on all rows."""
    import stepc

    source = torch.Generator().manual_seed(2)
    given = [(torch.randn(4, 8, generator=source), size * torch.randn(4, 4, generator=source))
             for size in (0.5, 1.5, 0.5, 1.5, 0.5)]
    if kind in ("scaled", "scale_read", "skips", "asserts"):
        given[1][1][-1, 0] = float("inf")
    if narrow:
        given = [(x.float(), y.float()) for x, y in given]
    alone, training = Deciding(kind, narrow), Deciding(kind, narrow)
    wanted = alone.run(alone.step, given)
    step = stepc.accelerate(training.step, config=stepc.Config(parallel=parallel, **config))
    got = training.run(step, [(rows_of(x, parallel), rows_of(y, parallel)) for x, y in given])
    with stepc.full_parameters(training.model, training.optimizer):
        return {"wanted": wanted, "got": got, "wanted_state": alone.model.state_dict(),
                "got_state": {name: one.clone() for name, one in training.model.state_dict().items()},
                "scales": (alone.scaler.get_scale(), training.scaler.get_scale()),
                "stats": {name: step.stats[name] for name in ("plans", "replays", "eager_calls", "departures")}}


@case
def decisions():
    """Steps that decide by what they read: all ranks alike, and as one process."""
    import stepc

    out = {kind: decided(kind, "ddp") for kind in DECISIONS}
    for kind in ("scaled", "compares"):
        out[f"{kind} fsdp"] = decided(kind, {"dp_shard": 2})
    out["compares means"] = decided("compares", "ddp", loss_mean="ranks")
    out["skips zero1"] = decided("skips", {"dp_shard": 2, "zero": 1})
    for narrow in (torch.float16, torch.bfloat16):
        out[str(narrow).removeprefix("torch.")] = decided("scale_read", "ddp", narrow)
    stages = {"pp": 2, "stages": ["0", "2"]}
    for kind in ("scale_read", "skips", "clips_itself", "asserts"):
        out[f"{kind} pp"] = decided(kind, stages, micro_batches=2)
    out["scaled in micro-batches"] = decided("scaled", {"dp_shard": 2}, micro_batches=2)
    out["float16 pp"] = decided("scale_read", stages, torch.float16, micro_batches=2)
    out["by rank"] = refused(lambda: decided("by_rank", "ddp"))
    given = [(torch.ones(2, 8), torch.ones(2, 4) * size) for size in (1, 2, 3)]
    first, second = Deciding("scaled"), Deciding("scaled")
    before, after = (stepc.accelerate(one.step, config=stepc.Config(parallel="fsdp")) for one in (first, second))
    first.run(before, given)
    before.save("scaled", scaler=first.scaler)
    after.load("scaled", scaler=second.scaler)
    out["saved"] = {"wanted": first.run(before, given), "got": second.run(after, given),
                    "scales": (first.scaler.get_scale(), second.scaler.get_scale())}
    return out


class Ordinary(Training):
    """Steps with what programs of fine-tuning do beside the model."""

    def __init__(self, kind):
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
        self.step = getattr(self, kind)

    def loss_of(self, ids, labels):
        logits = self.model(input_ids=ids).logits[:, :-1]
        return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), labels[:, 1:].reshape(-1))

    def update(self, loss, *others):
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach(), *others

    def padding(self, ids):
        labels = ids.clone()
        labels[labels < 20] = -100
        return self.update(self.loss_of(ids, labels))

    def lists(self, ids):
        logits = self.model(input_ids=ids).logits[:, :-1]
        losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none").mean(1)
        return self.update(losses.mean(), max(losses.tolist()), float(losses.detach().numpy().sum()))

    def equals(self, ids):
        loss = self.loss_of(ids, ids)
        weight = self.model.transformer.wte.weight
        if torch.equal(weight, 2 * weight) or torch.allclose(loss, torch.zeros(()), atol=1e-3):
            loss = 2 * loss
        return self.update(loss)

    def texts(self, ids):
        loss = self.loss_of(ids, ids)
        text = f"{loss:.4f} {torch.stack([loss, -loss])} {loss.detach()!r} {str(loss)}"
        return self.update(loss, text)

    def weights(self, ids):
        return self.update(self.loss_of(ids, ids), self.model.transformer.wte.weight.tolist())

    def updated_outside(self, ids):
        loss = self.loss_of(ids, ids)
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.optimizer.zero_grad()
        return loss.detach()


@case
def ordinary():
    import stepc

    out = {}
    for parallel in ("fsdp",) if WORLD == 2 else ({"dp_shard": WORLD // 2, "tp": 2},):
        for kind in ("padding", "lists", "equals", "texts"):
            alone, training = Ordinary(kind), Ordinary(kind)
            step = on_ranks(training, parallel)
            out[kind] = {"wanted": [alone.step(one) for one in batches()],
                         "got": [step(rows_of(one, parallel)) for one in batches()], "stats": dict(step.stats)}
        for kind in ("weights", "updated_outside"):
            training = Ordinary(kind)
            out[kind] = refused(lambda: on_ranks(training, parallel)(rows_of(batches()[0], parallel)))
            assert not training.scaler._per_optimizer_states
    return out


def means_of_parts(parts, **configs):
    """Ranks have unlike many targets that count: each the mean of its own, and all of them the mean of those, as under DDP.
    `parts`: so many have rows of their own. What the ranks get by each config, beside one process."""
    import stepc

    def targets(step, part):
        labels = batches()[step].chunk(parts)[part].clone()
        labels[:, 2 + 4 * part:] = -100  # rows of 1 target on the first, of 5 on the second
        return labels

    def training_of(count):
        """Its step takes the mean of the means of so many parts of its rows."""
        training = Training()

        def step(ids, labels):
            losses = []
            for part, wanted in zip(ids.chunk(count), labels.chunk(count)):
                logits = training.model(input_ids=part).logits[:, :-1]
                losses.append(torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), wanted[:, 1:].reshape(-1)))
            loss = torch.stack(losses).mean()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(training.model.parameters(), 0.5)
            training.optimizer.step()
            training.optimizer.zero_grad()
            return {"loss": loss.detach(), "norm": norm}

        training.step = step
        return training

    def run(training, step, given):
        out = []
        for batch in given:
            out.append([one.item() for one in step(*batch).values()])
            training.scheduler.step()
        return out

    def on(parallel, **config):
        training, mine = training_of(1), RANK * parts // WORLD
        step = on_ranks(training, parallel, **config)
        got = run(training, step, [(batches()[s].chunk(parts)[mine], targets(s, mine)) for s in range(STEPS)])
        with stepc.full_parameters(training.model, training.optimizer):
            return {"wanted": wanted, "got": got, "wanted_state": alone.state(), "got_state": training.state()}

    alone = training_of(parts)
    wanted = run(alone, alone.step, [(batches()[s], torch.cat([targets(s, p) for p in range(parts)])) for s in range(STEPS)])
    return {name: on(**config) for name, config in configs.items()}


@case
def means_of_ranks():
    import stepc

    means = dict(loss_mean="ranks")
    rows = Training()
    logits = lambda ids: rows.model(input_ids=ids).logits.detach()
    refuse = stepc.accelerate(logits, config=stepc.Config(parallel="fsdp", **means))
    return {**means_of_parts(2, fsdp=dict(parallel="fsdp", **means), ddp=dict(parallel="ddp", **means),
                             zero1=dict(parallel={"dp_shard": -1, "zero": 1}, **means), all=dict(parallel="ddp")),
            **means_of_parts(1, cp=dict(parallel={"cp": 2}, **means)),
            "rows": refused(lambda: refuse(rows_of(batches()[0], "fsdp"))),
            "global": refused(lambda: means_of_parts(2, _=dict(parallel="fsdp", batch="global", **means)))}


@case
def means_along_the_sequence():
    """Ranks along cp have the same rows, and count as one."""
    return means_of_parts(2, **{name: dict(parallel={axis: 2, "cp": 2}, loss_mean="ranks")
                                for name, axis in (("sharded", "dp_shard"), ("replicated", "dp_replicate"))})


@case
def rows_elsewhere():
    """Sequences stand first, and a mask is as long as they are."""
    import stepc

    def made():
        torch.manual_seed(0)
        model = torch.nn.RNN(6, 8)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        def step(batch):
            out, _ = model(batch["x"])
            loss = (out * batch["mask"][:, None, None]).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        return step

    given = [torch.randn(4, 4, 6, generator=torch.Generator().manual_seed(one)) for one in range(STEPS)]
    mask = torch.tensor([1.0, 0.0, 1.0, 1.0])
    eager, dims = made(), {"x": 1, "mask": None}
    step = stepc.accelerate(made(), config=stepc.Config(parallel="fsdp", batch_dims=dims))
    of = lambda x: {"x": x.chunk(WORLD, dim=1)[RANK].contiguous(), "mask": mask}
    far = stepc.accelerate(made(), config=stepc.Config(parallel="fsdp", batch_dims={"x": 3}))

    # As many weights as a rank has rows, and rows that stand second: shown by the sizes of the whole batch.
    def weighed(batch):
        return ((batch["x"] * batch["weight"]).sum(-1).square() * batch["y"].t()).mean().detach()

    wide = lambda x: {"x": x, "weight": torch.tensor([1.0, 2.0]), "y": x[:, :3, 0].t().contiguous()}
    found = stepc.accelerate(weighed, config=stepc.Config(parallel="fsdp"))
    all_rows = [torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(one)) for one in range(STEPS)]
    unfit = stepc.accelerate(lambda batch: (batch["x"] * torch.ones(2, 1)).sum(), config=stepc.Config(parallel="fsdp"))
    return {"wanted": [eager({"x": x, "mask": mask}).item() for x in given], "got": [step(of(x)).item() for x in given],
            "far": refused(lambda: far(of(given[0]))), "unfit": refused(lambda: unfit({"x": torch.ones(2, 3)})),
            "found": {"wanted": [weighed(wide(x)).item() for x in all_rows],
                      "got": [found(wide(x.chunk(WORLD)[RANK])).item() for x in all_rows]}}


def of_lengths(parallel, lengths):
    """Batches whose length changes from call to call, and is odd."""
    import stepc

    alone, training = Training(Attending), Training(Attending)
    source = torch.Generator().manual_seed(1)
    given = [torch.randint(VOCABULARY, (ROWS, length), generator=source) for length in lengths]
    wanted = alone.run(alone.step, given)
    step = on_ranks(training, parallel)
    got = training.run(step, [rows_of(one, parallel) for one in given])
    with stepc.full_parameters(training.model, training.optimizer):
        return {"wanted": wanted, "got": got, "wanted_state": alone.state(), "got_state": training.state()}


@case
def odd_lengths():
    return {"auto": of_lengths({"cp": 2}, [33, 37, 24]), "heads": of_lengths({"cp": 2, "context": "heads"}, [33]),
            "gather": of_lengths({"cp": 2, "context": "gather"}, [63]), "ring": refused(lambda: of_lengths({"cp": 2, "context": "ring"}, [33]))}


@case
def windows_on_larger_memory():
    """Batches that are no rows in a row, which a person cuts out of one tensor."""
    import stepc

    source = torch.Generator().manual_seed(1)
    given = [torch.randint(VOCABULARY, (ROWS, 2 * LENGTH), generator=source) for _ in range(STEPS)]
    ids_of, labels_of = lambda one: one[:, :LENGTH], lambda one: one[:, 1:LENGTH + 1]

    def training_of():
        training = Training()

        def step(ids, labels):
            logits = training.model(input_ids=ids).logits
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), labels.reshape(-1))
            loss.backward()
            training.optimizer.step()
            training.optimizer.zero_grad()
            return {"loss": loss.detach()}

        training.step = step
        return training

    def run(training, step, of=lambda one: one):
        return [[step(ids_of(of(one)), labels_of(of(one)))["loss"].item()] for one in given]

    alone = training_of()
    out = {"wanted": run(alone, alone.step)}
    for name, parallel, config in (("fsdp", "fsdp", {}), ("tp", {"tp": 2}, {}), ("cp", {"cp": 2}, {}),
                                   ("global", "fsdp", {"batch": "global"}), ("ranks", "ddp", {"loss_mean": "ranks"})):
        training = training_of()
        is_whole = config.get("batch") == "global"
        out[name] = run(training, on_ranks(training, parallel, **config), lambda one: one if is_whole else rows_of(one, parallel))
    # One rank alone has them otherwise in memory.
    training = Training()
    step = on_ranks(training, "fsdp")
    rows = rows_of(batches()[0], "fsdp")
    out["one"] = step(rows.t().contiguous().t() if RANK else rows)["loss"].item()
    out["one wanted"] = Training().step(batches()[0])["loss"].item()
    # What a step writes to its batch is there, or refused.
    def writes(ids, seen):
        seen += 1
        return (seen * ids).double().mean()

    seen = torch.zeros(ROWS, LENGTH)[:, ::2]
    whole = stepc.accelerate(writes, config=stepc.Config(parallel={"tp": 2}))
    out["write"] = refused(lambda: whole(batches()[0][:, ::2], seen))
    seen = seen.contiguous()
    whole(batches()[0][:, ::2], seen)
    out["written"] = bool((seen == 1).all())
    return out


@case
def arguments():
    """Whatever stands beside tensors is the same on ranks whose processes say other words of it."""

    class Scales:
        of_loss = 2.0

    def run(training, step, *others):
        return [[step(rows_of(one, "fsdp") if step is not training.step else one, *others)["loss"].item()] for one in batches()]

    def training_of():
        training = Training()
        training.step = lambda ids, scales, function, names: {
            "loss": function(Training.step(training, ids)["loss"]) * scales.of_loss * len(names)}
        return training

    alone, training = training_of(), training_of()
    others = Scales(), (lambda loss: 3 * loss), {"a", "b", "c"}
    wanted = run(alone, alone.step, *others)
    step = on_ranks(training, "fsdp")
    missing = refused(lambda: step(rows_of(batches()[0], "fsdp"), *others, *[torch.ones(2)] * RANK))
    return {"wanted": wanted, "got": run(training, step, *others), "missing": missing}


@case
def unmodified_llama():
    torch.set_default_dtype(torch.float32)

    def losses(step, given):
        return [step(batch).item() for batch in given]

    def made():
        training = Training(llama)

        def step(ids):
            loss = training.model(input_ids=ids, labels=ids).loss
            loss.backward()
            training.optimizer.step()
            training.optimizer.zero_grad()
            return loss.detach()

        return training, step

    import stepc

    alone, training = made(), made()
    step = stepc.accelerate(training[1], config=stepc.Config(parallel="fsdp"))
    return {"wanted": losses(alone[1], batches()), "got": losses(step, [rows_of(one, "fsdp") for one in batches()])}


@case
def optimizers():
    made = {
        "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        "amsgrad": lambda p: torch.optim.Adam(p, lr=1e-2, amsgrad=True),
        "fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-2, momentum=0.5),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2, initial_accumulator_value=0.5),
    }
    return {name: beside_one("fsdp", optimizer=one) for name, one in made.items()}


@case
def whole_tensors():
    import stepc

    training = Training()
    before = training.model.state_dict()["transformer.wte.weight"].clone()
    step = on_ranks(training, "fsdp")
    training.run(step, [rows_of(one, "fsdp") for one in batches()])
    weight = training.model.transformer.wte.weight
    out = {"outside": ""}
    try:
        weight.sum().item()
    except RuntimeError as error:
        out["outside"] = str(error).splitlines()[0]
    with stepc.full_parameters(training.model, rank0_only=True) as is_here:
        out["is_here"] = is_here
        out["moved"] = bool(is_here and (weight - before).abs().max() > 0)
    with stepc.full_parameters(training.model):
        kept = weight.detach().clone()
        with torch.no_grad():
            weight.zero_()
    with stepc.full_parameters(training.model):
        out["written"] = bool((weight == 0).all())
        with torch.no_grad():
            weight.copy_(kept)
    return out


@case
def evaluation(parallel="fsdp", model=gpt2, **config):
    import stepc

    alone, training = Training(model), Training(model)

    def loss_of(model):
        def loss(ids):
            logits = model(input_ids=ids).logits[:, :-1]
            return torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))

        return loss

    def both(training):
        loss = loss_of(training.model)

        def step(ids):
            return training.step(ids)["loss"] if training.model.training else loss(ids)

        return step

    step, eager = stepc.accelerate(both(training), config=stepc.Config(parallel=parallel, **config)), both(alone)
    out = {"wanted": [], "got": []}
    for ids in batches():
        for name, one, of, given in (("wanted", eager, alone, ids), ("got", step, training, rows_of(ids, parallel))):
            of.model.train()
            out[name].append(one(given).item())
            of.model.eval()
            with torch.no_grad():
                out[name].append(one(given).item())
    out["plans"] = step.stats["plans"]
    return out


@case
def checkpoint_of_torch():
    """What eager has trained goes on on ranks, and back."""
    import stepc

    alone, training = Training(), Training()
    given = batches(4)
    wanted = alone.run(alone.step, given)
    first = Training()
    first.run(first.step, given[:1])
    saved = first.model.state_dict(), first.optimizer.state_dict(), first.scheduler.state_dict()

    step = on_ranks(training, "fsdp")
    training.run(step, [rows_of(one, "fsdp") for one in given[2:]])  # something else before
    with stepc.full_parameters(training.model):
        training.model.load_state_dict(saved[0])
    training.optimizer.load_state_dict(saved[1])
    training.scheduler.load_state_dict(saved[2])
    got = training.run(step, [rows_of(one, "fsdp") for one in given[1:]])
    return {"wanted": wanted[1:], "got": got}


@case
def checkpoints():
    """Saved on fsdp in the midst of a run that goes on: what goes on there, elsewhere, and from sizes alone."""
    import stepc

    alone, training = Training(), Training()
    given = batches(4)
    wanted = alone.run(alone.step, given)

    def go_on(parallel, saved, **made):
        region = stepc.virtual() if made.pop("is_virtual", False) else contextlib.nullcontext()
        with region:
            other = Training(seed=5, **made)
        step = on_ranks(other, parallel)
        if saved is None:  # another run's state lies in parts already
            other.run(step, [rows_of(one, parallel) for one in given[2:]])
        loaded = step.load(saved or "saved", scheduler=other.scheduler)
        return other, step, loaded, other.run(step, [rows_of(one, parallel) for one in given[loaded.step:]])

    step = on_ranks(training, "fsdp")
    first = training.run(step, [rows_of(one, "fsdp") for one in given[:2]])
    path = step.save("saved", scheduler=training.scheduler, note=[RANK])
    same = training.run(step, [rows_of(one, "fsdp") for one in given[2:]])
    got = {"same": go_on("fsdp", path)[3], "after": go_on("fsdp", None)[3], "virtual": go_on("fsdp", path, is_virtual=True)[3]}
    other, on_tp, loaded, got["tp"] = go_on({"tp": 2}, path)
    of_tp = on_tp.save("of_tp", step=2, scheduler=other.scheduler)
    # One process takes it, and what it saves goes on on ranks.
    single = Training(seed=6)
    plain = stepc.accelerate(single.step)
    plain.load(path, scheduler=single.scheduler)
    if RANK == 0:
        plain.save("of_one", scheduler=single.scheduler)
    with stepc.full_parameters(other.model):  # waits for rank 0
        pass
    got["of one"] = go_on("fsdp", "of_one")[3]
    got["one"] = single.run(plain, given[2:])
    return {"wanted": wanted, "first": first, "rest": same, "got": got, "files": sorted(os.listdir(path)), "note": loaded.state,
            "of_tp": sorted(os.listdir(of_tp)), "nowhere": refused(lambda: on_ranks(Training(), "fsdp").load("nowhere")),
            "other": refused(lambda: on_ranks(Training(llama), "fsdp").load(path)),
            "name": refused(lambda: on_ranks(Training(), "fsdp").load(path, loader=stepc.AsyncLoader([])))}


def adapted():
    """A frozen base with low-rank matrices beside one of it, which alone are trained."""
    config = transformers.LlamaConfig(vocab_size=VOCABULARY, hidden_size=128, intermediate_size=1024, num_hidden_layers=1,
                                      num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=LENGTH)
    model = transformers.LlamaForCausalLM(config).requires_grad_(False)
    adapted = model.model.layers[0].mlp.down_proj
    adapted.lora_A, adapted.lora_B = torch.nn.Linear(1024, 4, bias=False), torch.nn.Linear(4, 128, bias=False)
    adapted.register_forward_hook(lambda module, inputs, out: out + module.lora_B(module.lora_A(inputs[0])))
    return model


@case
def checkpoints_of_a_frozen_base():
    """Two of them, and what the last one holds."""
    import stepc

    training = Training(adapted, lambda parameters: torch.optim.AdamW([one for one in parameters if one.requires_grad], lr=1e-2))
    step = on_ranks(training, "fsdp")
    paths = []
    for batch in batches(2):
        training.run(step, [rows_of(batch, "fsdp")])
        paths.append(os.path.abspath(step.save("frozen")))
    with stepc.full_parameters(training.model):
        return {"paths": paths, "state": {name: one.detach().clone() for name, one in training.model.state_dict().items()}}


def sgd_in_float32(parameters):
    """Its momentum has another type than bfloat16 parameters."""
    parameters = list(parameters)
    optimizer = torch.optim.SGD(parameters, lr=0.05, momentum=0.9, foreach=False)
    for one in parameters:
        optimizer.state[one]["momentum_buffer"] = torch.zeros_like(one, dtype=torch.float32)
    return optimizer


@case
def checkpoint_of_other_types():
    """Optimizer state of another type than its parameter comes back in its type, with its bits."""
    import stepc

    def made(seed):
        training = Training(lambda: llama().bfloat16(), sgd_in_float32, seed)
        step = on_ranks(training, "fsdp")
        return training, step

    def state_of(training):
        with stepc.full_parameters(training.model, training.optimizer):
            return training.state()

    training, step = made(0)
    given = [rows_of(one, "fsdp") for one in batches(4)]
    training.run(step, given[:2])
    path = step.save("types", scheduler=training.scheduler)
    saved = state_of(training)
    rest = training.run(step, given[2:])
    other, on_other = made(1)
    on_other.load(path, scheduler=other.scheduler)
    before = other.run(on_other, given[2:])
    third, on_third = made(2)
    on_third.load(path, scheduler=third.scheduler)
    third.run(on_third, given[2:3])  # whose state is there by now
    on_third.load(path, scheduler=third.scheduler)
    return {"rest": rest, "got": before, "saved": saved, "loaded": state_of(third)}


@case
def loaders():
    """Each rank's loader goes on in its own order: by a generator of its own, by the process's, and as DistributedSampler has it."""
    import numpy
    import stepc
    from torch.utils.data import DataLoader, DistributedSampler

    class Drawing(torch.utils.data.Sampler):
        def __len__(self):
            return 8

        def __iter__(self):
            return iter(numpy.random.permutation(8).tolist())

    def made(seed):
        numpy.random.seed(seed)
        training = Training(seed=seed)
        own = torch.Generator().manual_seed(seed + RANK)
        samplers = [torch.utils.data.RandomSampler(range(8), generator=own), Drawing(),
                    DistributedSampler(range(16), WORLD, RANK)]
        loaders = {f"loader{i}": stepc.AsyncLoader(DataLoader(range(16), 2, sampler=one)) for i, one in enumerate(samplers)}
        return training, on_ranks(training, "fsdp"), loaders

    def rows(loaders, batches_each):
        return [[batch.tolist() for _, batch in zip(range(batches_each), one)] for one in loaders.values()]

    training, step, loaders = made(0)
    numpy.random.seed(RANK)
    training.run(step, [rows_of(batches(1)[0], "fsdp")])
    first = rows(loaders, 2)
    path = step.save("loaders", **loaders)
    other, on_other, again = made(7)
    on_other.load(path, **again)
    rest = rows(again, 4)
    on_other.load(path, **again)
    return {"first": first, "rest": rest, "again": rows(again, 4)}


@case
def torchs_checkpoints():
    """PyTorch's own distributed checkpoint takes a step from fsdp to tp and back, and the CLI's slices with it."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import DTensor

    import stepc

    alone = Training()
    given = batches(4)
    wanted = alone.run(alone.step, given)
    training = Training()
    step = on_ranks(training, "fsdp")
    training.run(step, [rows_of(one, "fsdp") for one in given[:2]])
    with stepc.distributed_state(step) as state:
        dcp.save(state, checkpoint_id="dcp")
        kinds = {name: type(one) is DTensor for name, one in state["model"].items()}
        local = {name: tuple(one.to_local().shape) for name, one in state["model"].items() if kinds[name]}
    out = {"wanted": wanted[2:], "kinds": kinds, "local": local}
    for name, parallel in {"fsdp": "fsdp", "tp": {"tp": 2}, "pp": {"pp": 2, "stages": ["h.0", "lm_head"]}}.items():
        other = Training(seed=5)
        step = on_ranks(other, parallel, micro_batches=2 if name == "pp" else 1)
        other.run(step, [rows_of(one, parallel) for one in given[:2]])
        with stepc.distributed_state(step) as state:
            dcp.load(state, checkpoint_id="dcp")
            if name == "pp":
                out["of_stage"] = set(state["model"])
                dcp.save(state, checkpoint_id="dcp-of-stages")
        out[name] = other.run(step, [rows_of(one, parallel) for one in given[2:]])
    other = Training(seed=6)
    step = on_ranks(other, "fsdp")
    other.run(step, [rows_of(one, "fsdp") for one in given[:2]])
    with stepc.distributed_state(step) as state:
        dcp.load(state, checkpoint_id="dcp-of-stages")
    out["from pp"] = other.run(step, [rows_of(one, "fsdp") for one in given[2:]])
    out["refused"] = refused(lambda: stepc.distributed_state(stepc.accelerate(Training().step)).__enter__())
    return out


@case
def replicas_that_differ():
    """Memory of one rank goes bad between two calls: the next comparison says where, on every rank."""
    training = Training()
    step = on_ranks(training, "ddp", elastic={"check_every": 2})
    given = [rows_of(one, "ddp") for one in batches(4)]
    for one in given[:2]:
        step(one)
    if RANK == 1:
        with torch.no_grad():
            next(training.model.parameters()).view(-1)[0] += 1
    step(given[2])
    other_time = refused(lambda: on_ranks(Training(), "fsdp", elastic={"stall_seconds": 7}))
    return {"saved": refused(lambda: step.save("bad")), "said": refused(lambda: step(given[3])), "other time": other_time}


@case
def loops():
    """A loop that stays as it is, on rows of each rank's own, is that of one rank on all rows."""
    import stepc

    def run(parallel, *, accumulates):
        alone, training = Training(), Training(seed=RANK)
        rates = {"mode": "exact"} if accumulates else {}
        model, optimizer = stepc.accelerate(training.model, training.optimizer,
                                            config=stepc.Config(parallel=parallel, **rates))
        wrapped = torch.nn.parallel.DistributedDataParallel(model)

        def steps(one, called, of_rows):
            norms = []
            for batch in batches(steps=8):
                rows = of_rows(batch)
                parts = rows.chunk(2) if accumulates else [rows]
                for at, part in enumerate(parts):
                    waits = called is wrapped and at + 1 < len(parts)
                    with wrapped.no_sync() if waits else contextlib.nullcontext():
                        logits = called(input_ids=part).logits[:, :-1]
                        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), part[:, 1:].reshape(-1))
                        (loss / len(parts)).backward()
                norms.append(torch.nn.utils.clip_grad_norm_(one.model.parameters(), 0.5).item())
                one.optimizer.step()
                one.optimizer.zero_grad()
                one.scheduler.step()
            return norms

        wanted = steps(alone, alone.model, lambda batch: batch)
        got = steps(training, wrapped, lambda batch: rows_of(batch, parallel))
        return {"wanted": wanted, "got": got, "replays": stepc.stats(model)["replays"], "updates": stepc.stats(optimizer)["replays"],
                "wanted_state": alone.model.state_dict(), "got_state": training.model.state_dict(),
                "own": len(training.optimizer.state), "reducer": hasattr(wrapped, "reducer"), "is_ddp": type(wrapped).__mro__[1].__name__}

    out = {"ddp": run("ddp", accumulates=False), "zero1": run({"dp_shard": -1, "zero": 1}, accumulates=False),
           "accumulated": run("ddp", accumulates=True), "parameters": len(list(gpt2().parameters()))}
    unused = torch.nn.ModuleList([torch.nn.Linear(4, 1), torch.nn.Linear(4, 1)])
    unused.forward = lambda x: unused[RANK](x)
    model = stepc.accelerate(unused, config=stepc.Config(parallel="ddp"))
    out["others"] = refused(lambda: model(torch.ones(2, 4)).sum().backward())
    compiled = torch.jit.script(torch.nn.Linear(2, 1))
    out["compiled"] = refused(lambda: stepc.accelerate(compiled, config=stepc.Config(parallel="ddp")))
    for name, parallel in {"zero3": "fsdp", "zero2": {"dp_shard": 2, "zero": 2}, "tp": {"tp": 2}, "mesh": {"dp_replicate": 3},
                           "reduce": {"dp_replicate": 2, "reduce": "bfloat16"}}.items():
        out[name] = refused(lambda: stepc.accelerate(Training().model, config=stepc.Config(parallel=parallel)))
    return out


@case
def trainer():
    """transformers' own loop, whose accelerate wraps the model: as under DistributedDataParallel."""
    import stepc

    torch.set_default_dtype(torch.float32)

    def trained(accelerates):
        torch.manual_seed(0)
        model = llama()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if accelerates:
            stepc.accelerate(model, optimizer, config=stepc.Config(parallel="ddp"))
        options = transformers.TrainingArguments(
            output_dir=f"trainer-{accelerates}", max_steps=8, per_device_train_batch_size=2, gradient_accumulation_steps=2,
            use_cpu=True, report_to=[], logging_steps=1, save_strategy="no", disable_tqdm=True, seed=3)
        data = [{"input_ids": ids, "labels": ids} for ids in batches(steps=1, rows=40)[0]]
        made = transformers.Trainer(model=model, args=options, train_dataset=data,
                                    optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer)))
        made.train()
        logged = [[one[name] for name in ("loss", "grad_norm")] for one in made.state.log_history if "grad_norm" in one]
        wrapper = made.model_wrapped
        return logged, model, isinstance(wrapper, torch.nn.parallel.DistributedDataParallel), hasattr(wrapper, "reducer")

    wanted, eager, *of_eager = trained(False)
    got, model, *of_ours = trained(True)
    return {"wanted": wanted, "got": got, "of_eager": of_eager, "of_ours": of_ours, "replays": stepc.stats(model)["replays"],
            "wanted_state": eager.state_dict(), "got_state": model.state_dict()}


@case
def rank_zero_has_the_model():
    """The others have sizes alone."""
    import stepc

    alone = Training()
    with contextlib.nullcontext() if RANK == 0 else stepc.virtual():
        training = Training()
    wanted = alone.run(alone.step, batches())
    got = training.run(on_ranks(training, "fsdp"), [rows_of(one, "fsdp") for one in batches()])
    return {"wanted": wanted, "got": got}


@case
def other_seeds():
    """Dropout and first weights are rank 0's, however many ranks there are."""
    import stepc

    model = lambda: gpt2(dropout=0.2)
    alone = Training(model)
    for one in alone.model.parameters():  # else the first step makes it, by running as it is, on eager's draws
        alone.optimizer.state[one] = {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(one),
                                      "exp_avg_sq": torch.zeros_like(one)}
    torch.manual_seed(7)
    plan = stepc.accelerate(alone.step, config=stepc.Config(capture="virtual", verify="off"))
    wanted = alone.run(plan, batches())
    training = Training(model, seed=RANK)
    torch.manual_seed(7 + RANK)
    step = on_ranks(training, "fsdp")
    with logged() as lines:
        got = training.run(step, [rows_of(one, "fsdp") for one in batches()])
    return {"wanted": wanted, "got": got, "lines": lines}


@case
def traced():
    """What the step's own code counts, draws and keeps is as in eager, once a call, and each number is another one."""

    class Traced(Training):
        def __init__(self):
            super().__init__()
            self.calls, self.seen = 0, []

        def step(self, ids):
            self.calls += 1
            logits = self.model(input_ids=ids).logits[:, :-1]
            loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), ids[:, 1:].reshape(-1))
            loss = loss * (1 + random.random())
            self.seen.append(loss.item())
            if self.calls == 3:
                loss = loss.square()
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.5)
            self.optimizer.step()
            self.optimizer.zero_grad()
            return {"loss": loss.detach(), "norm": norm}

    import stepc

    alone, training = Traced(), Traced()
    random.seed(3)
    wanted = alone.run(alone.step, batches(5))
    random.seed(3)
    step = on_ranks(training, "fsdp", python="trace", verify="always")
    got = training.run(step, [rows_of(one, "fsdp") for one in batches(5)])
    with stepc.full_parameters(training.model, training.optimizer):
        return {"wanted": wanted, "got": got, "wanted_state": alone.state(), "got_state": training.state(),
                "seen": (training.seen, alone.seen), "calls": training.calls,
                "stats": {name: step.stats[name] for name in ("replays", "verifications", "warnings")}}


@contextlib.contextmanager
def logged():
    lines = []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("stepc")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


@case
def refusals():
    import stepc

    def called(change, given=None, **config):
        training = Training()
        before = {name: one.clone() for name, one in training.model.state_dict().items()}
        given = rows_of(batches()[0], "fsdp") if given is None else given
        said = refused(lambda: on_ranks(change(training) or training, "fsdp", **config)(given))
        after = training.model.state_dict()
        assert all(torch.equal(before[name], after[name]) for name in before) and not training.optimizer.state
        return said

    def of_step(step):
        def change(training):
            training.step = lambda ids: step(training, ids)

        return change

    def looks(training, ids):
        return Training.step(training, ids)["loss"].nonzero().numel()

    def makes(training, ids):
        found = Training.step(training, ids)
        return found["norm"] * torch.tensor(min(found["loss"].item(), 1e3))

    def keeps(training, ids):
        training.optimizer.zero_grad()
        training.model(input_ids=ids).logits.sum().backward()
        training.optimizer.step()

    def prints(training, ids):
        print("", end="")
        return Training.step(training, ids)

    def dampened(training):
        training.optimizer = torch.optim.SGD(training.model.parameters(), lr=0.1, momentum=0.9, dampening=0.5)

    ids = batches()[0]
    out = {
        "reads": called(of_step(looks)),
        "makes tensors": called(of_step(makes)),
        "keeps gradients": called(of_step(keeps)),
        "prints": called(of_step(prints)),
        "first step": called(dampened),
        "other rows": called(lambda _: None, given=ids[: 1 + RANK]),
        "mesh": refused(lambda: on_ranks(Training(), {"dp_shard": 3})),
        "exact": refused(lambda: on_ranks(Training(), "fsdp", mode="exact")),
        "name": refused(lambda: on_ranks(Training(), {"dp": 2})),
        "reduce": refused(lambda: on_ranks(Training(), {"dp_shard": 2, "reduce": "fp8"})),
        "preset": refused(lambda: on_ranks(Training(), "zero")),
        "rest": refused(lambda: on_ranks(Training(), {"dp_shard": -1, "tp": 3})),
        "rule": called(lambda _: None, shard={"*.q_proj.weight": {0: "dp_shard"}}),
    }
    training = Training()
    step = on_ranks(training, "fsdp", batch="global")
    out["not global"] = refused(lambda: step((ids + RANK) % VOCABULARY))
    training = Training()
    step = on_ranks(training, "fsdp")
    step(rows_of(ids, "fsdp"))
    training.optimizer.param_groups[0]["lr"] = 1e-3 * (1 + RANK)
    out["learning rate"] = refused(lambda: step(rows_of(ids, "fsdp")))
    training.optimizer.param_groups[0]["lr"] = 1e-3
    # An error of one rank alone: in its program, outside of any call, and where a call begins.
    if RANK == 1:
        sys.excepthook(ValueError, ValueError("a broken row\nof line 3"), None)
        out["exception"] = "rank 1: ValueError: a broken row"
        training.optimizer.param_groups[0]["betas"] = None
    else:
        out["exception"] = refused(lambda: step(rows_of(ids, "fsdp")))
    try:
        step(rows_of(ids, "fsdp"))
    except Exception as error:
        out["in a call"] = str(error).splitlines()[0]
    training.optimizer.param_groups[0]["betas"] = (0.9, 0.999)
    out["another call"] = refused(lambda: step.save("interrupted") if RANK else step(rows_of(ids, "fsdp")))
    step(rows_of(ids, "fsdp"))
    return out


@case
def report():
    training = Training()
    step = on_ranks(training, "fsdp")
    training.run(step, [rows_of(one, "fsdp") for one in batches()])
    with step.profile() as profile:
        step(rows_of(batches()[0], "fsdp"))
    return {"report": step.report(), "all": step.report(all_ranks=True), "profile": str(profile)}


@case
def example_of_the_docs():
    """The program in docs/parallel.md, as it stands."""
    import io
    import re

    torch.set_default_dtype(torch.float32)
    torch.manual_seed(0)
    page = Path(__file__).resolve().parents[2] / "docs" / "parallel.md"
    (block,) = re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(block, str(page), "exec"), {"__name__": "docs"})
    return {"said": said.getvalue(), "files": set(os.listdir("out")) if RANK == 0 else set()}


# ---- unmodified models, behind --ranks

BOTH = {"dp_shard": 2, "tp": 2}
FAMILIES = {
    **{name: BOTH for name in ("llama", "qwen3", "gpt2", "bloom", "glm", "olmo2", "gemma2", "bert", "t5", "vit", "whisper")},
    "timm_resnet": {"dp_replicate": 4}, "timm_resnet sharded": {"dp_shard": 4}, "timm_convnext": {"dp_shard": 4},
    **{name: {axis: 4} for axis, names in {"dp_replicate": ("unet", "dit"), "dp_shard": ("unet sharded", "dit sharded")}.items()
       for name in names},
}


def diffusion(models, name):
    """diffusers' usual loss, on noise and time steps that are given: those of all rows, on any number of ranks."""
    import diffusers

    schedule = diffusers.DDPMScheduler()

    def batch(source, masked):
        draw = lambda *shape: torch.randn(ROWS, *shape, generator=source)
        condition = ({"encoder_hidden_states": draw(6, 16)} if name == "unet" else
                     {"class_labels": torch.randint(10, (ROWS,), generator=source)})
        return {"latents": draw(4, 8, 8), "noise": draw(4, 8, 8), "times": torch.randint(1000, (ROWS,), generator=source),
                **condition}

    def loss_of(module, batch):
        latents, noise, times, condition = (batch[key] for key in ("latents", "noise", "times", list(batch)[3]))
        noisy = schedule.add_noise(latents, noise, times)
        predicted = module(noisy, timestep=times, **{list(batch)[3]: condition}).sample
        return torch.nn.functional.mse_loss(predicted, noise)

    return models.Model(models.MODELS[name].build, batch, loss_of)


def family(name, parallel=None, **config):
    """Losses and norms on all four ranks, without dropout, whose draws eager makes otherwise."""
    import models

    import stepc

    models.BATCH = ROWS
    torch.set_default_dtype(torch.float32)
    parallel, base = parallel or FAMILIES[name], name.split()[0]
    model = diffusion(models, base) if base in ("unet", "dit") else models.MODELS[base]
    source = torch.Generator().manual_seed(1)
    given = [models.cast(model.batch(source, False), torch.float32) for _ in range(STEPS)]

    def made():
        torch.manual_seed(0)
        module = model.build()
        if "timm" not in name:
            module.eval()
        for part in module.modules():
            if hasattr(part, "drop_prob"):
                part.drop_prob = 0.0
        optimizer = torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9)

        def step(batch):
            loss = model.loss_of(module, batch)
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach(), norm

        return step

    def run(step, of):
        return [[one.item() for one in step({key: of(value) for key, value in batch.items()})] for batch in given]

    wanted = run(made(), lambda value: value)
    try:
        step = stepc.accelerate(made(), config=stepc.Config(parallel=parallel, **config))
        return {"wanted": wanted, "got": run(step, lambda value: rows_of(value, parallel)), "refused": ""}
    except (stepc.UserError, stepc.InternalError) as error:
        return {"wanted": wanted, "got": [], "refused": str(error)}


# ---- pipelines

DEEP = lambda: gpt2(layers=3)


def some_labels(training, ids):
    """Rows have targets that count in unlike number, and the step returns what it makes of rows, numbers and nothing."""
    labels = torch.where(ids % 3 == 0, -100, ids)
    logits = training.model(input_ids=ids).logits[:, :-1]
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), labels[:, 1:].reshape(-1))
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(training.model.parameters(), 0.5)
    training.optimizer.step()
    training.optimizer.zero_grad()
    return loss.detach(), norm.item(), logits.detach().argmax(-1), (labels >= 0).sum(), None


def results_of_a_pipeline():
    import stepc

    def run(training, step, of):
        given = [step(of(batch)) for batch in batches()]
        return [[float(loss), norm, float(rows.float().mean()), float(count), float(nothing is None)]
                for loss, norm, rows, count, nothing in given]

    alone, training = Training(DEEP), Training(DEEP)
    wanted = run(alone, lambda ids: some_labels(alone, ids), lambda batch: batch)
    step = stepc.accelerate(lambda ids: some_labels(training, ids), config=stepc.Config(parallel={"pp": 2}, micro_batches=4))
    return {"wanted": wanted, "got": run(training, step, lambda batch: batch)}


def draws_of_a_pipeline():
    """The masks of dropout are those of the rows of the whole batch, however they are cut."""
    out = {}
    for name, parallel, config in (("wanted", {"dp_shard": 2}, {}), ("got", {"pp": 2}, {"micro_batches": 4})):
        training = Training(lambda: gpt2(0.3, layers=2))
        torch.manual_seed(7)
        step = on_ranks(training, parallel, **config)
        out[name] = training.run(step, [rows_of(batch, parallel) for batch in batches()])
    return out


def checkpoint_of_a_pipeline():
    """Trains and saves; goes on on another mesh, and from there as a pipeline again."""
    import stepc

    alone, given = Training(DEEP), batches(6)
    wanted = alone.run(alone.step, given)
    out = {"wanted": wanted}
    training = Training(DEEP)
    step = on_ranks(training, {"pp": 2}, micro_batches=2)
    out["got"] = training.run(step, given[:2])
    step.save("pipeline", scheduler=training.scheduler)
    ends = [(2, {"dp_shard": 2}, {}, "data"), (4, {"pp": 2, "order": "gpipe"}, {"micro_batches": 4}, "data")]
    where = "pipeline"
    for begin, parallel, config, kept in ends:
        training = Training(DEEP, seed=5)
        step = on_ranks(training, parallel, **config)
        step.load(where, scheduler=training.scheduler)
        out["got"] += training.run(step, [rows_of(one, parallel) for one in given[begin : begin + 2]])
        step.save(kept, scheduler=training.scheduler)
        where = kept
    return out


def refusals_of_pipelines():
    import stepc

    ids = batches()[0]

    def called(parallel, model=DEEP, step=None, **config):
        training = Training(model)
        if step is not None:
            training.step = lambda ids: step(training, ids)
        return refused(lambda: on_ranks(training, parallel, **config)(ids))

    def normed():
        return torch.nn.Sequential(torch.nn.Embedding(VOCABULARY, 8), torch.nn.BatchNorm1d(LENGTH), torch.nn.Linear(8, 1))

    def of_statistics(training, ids):
        loss = training.model(ids).sum()
        loss.backward()
        training.optimizer.step()
        training.optimizer.zero_grad()
        return loss.detach()

    return {
        "few": called({"pp": 2}, micro_batches=1),
        "rows": called({"pp": 2}, micro_batches=3),
        "name": called({"pp": 2, "stages": ["h.0", "g.1"]}, micro_batches=2),
        "names": called({"pp": 2, "stages": ["h.0"]}, micro_batches=2),
        "order": called({"pp": 2, "order": "2f2b"}, micro_batches=2),
        "statistics": called({"pp": 2, "stages": ["0", "2"]}, normed, of_statistics, micro_batches=2),
        "layers": called({"pp": 2}, gpt2, micro_batches=2),
        "means": called({"pp": 2}, micro_batches=2, loss_mean="ranks"),
        "stages": called({"dp_shard": 2, "chunks": 2}, micro_batches=2),
    }


CASES |= {
    "pipeline": lambda: beside_one({"pp": 2}, DEEP, micro_batches=2),
    "pipeline by names": lambda: beside_one({"pp": 2, "stages": ["h.0", "h.2"], "order": "gpipe"}, DEEP, micro_batches=4,
                                            memory_budget="auto"),
    "micro-batches alone": lambda: beside_one({"dp_shard": 2}, DEEP, micro_batches=2),
    "evaluation of a pipeline": lambda: evaluation({"pp": 2}, DEEP, micro_batches=2),
    "results_of_a_pipeline": results_of_a_pipeline, "draws_of_a_pipeline": draws_of_a_pipeline,
    "checkpoint_of_a_pipeline": checkpoint_of_a_pipeline, "refusals_of_pipelines": refusals_of_pipelines,
}
PIPELINES = {name: (lambda name=name: family(name, {"pp": 2, "dp_shard": 2}, micro_batches=2))
             for name in ("llama", "gpt2", "t5", "bert", "vit")}
PIPELINE_CASES = {f"pipeline of {name}": case for name, case in PIPELINES.items()}


# ---- sequences split over the ranks, behind --ranks, on four of them

CONTEXT = {
    "ring": {"cp": 4, "context": "ring"}, "heads": {"cp": 4, "context": "heads"}, "gather": {"cp": 4, "context": "gather"},
    "ring x fsdp": {"dp_shard": 2, "cp": 2, "context": "ring"}, "ring x ddp": {"dp_replicate": 2, "cp": 2, "context": "ring"},
    "ring x tp": {"cp": 2, "tp": 2, "context": "ring"}, "chosen": {"cp": 4},
}
CONTEXT_CASES = {f"context {name}": (lambda parallel=parallel: beside_one(parallel)) for name, parallel in CONTEXT.items()}
FAMILY_CASES = {f"family {name}": (lambda name=name: family(name)) for name in FAMILIES}


def main(build, out, group, *names):
    sys.path.insert(0, build)
    torch.set_num_threads(1)
    os.chdir(out)
    if group == "own":
        torch.distributed.init_process_group("gloo")
    import stepc

    # The default, for all steps of the process.
    stepc.accelerate(lambda: None, config=stepc.Config(parallel="ddp", elastic={"stall_seconds": 600}))
    results = {}
    for name in names:
        torch.set_default_dtype(torch.float64)
        results[name] = {**CASES, **FAMILY_CASES, **CONTEXT_CASES, **PIPELINE_CASES}[name]()
    torch.save(results, f"{out}/rank-{RANK}.pt")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
