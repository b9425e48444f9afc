"""Ordinary programs whose steps have to be replayed, whatever they slice, switch, cache or pass around."""

import copy
import functools
import itertools
import random
import types

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
                          get_cosine_schedule_with_warmup)

from catalogue.case import case
from catalogue.parts import (CHANGE, CLASSES, FEATURES, HIDDEN, STEPS, adam, batches, data, descend, fit, mlp,
                             sgd)

# ---- slices of data


@case
def rows_of_one_tensor(accelerate):
    model, (rows, classes) = mlp(), data(8 * STEPS)
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for i in range(0, len(rows), 8):
        yield step(rows[i : i + 8], classes[i : i + 8]), model, optimizer


@case
def windows_of_a_text(accelerate):
    """Inputs and targets overlap: the targets are the inputs, moved on by one."""
    model = nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 4))
    optimizer, text = sgd(model), data(12 * STEPS)[1]
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for i in range(0, len(text) - 12, 10):
        yield step(text[i : i + 8], text[i + 1 : i + 9]), model, optimizer


@case
def batches_by_chunk(accelerate):
    model, (rows, classes) = mlp(), data(8 * STEPS)
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for x, y in zip(rows.chunk(STEPS), classes.chunk(STEPS)):
        yield step(x, y), model, optimizer


@case
def columns_of_one_tensor(accelerate):
    model, (rows, _) = mlp(), data(8 * STEPS)
    optimizer, table = sgd(model), rows.view(8, STEPS * 8)
    _, y = data()
    step = accelerate(lambda x: descend(cross_entropy(model(x), y), optimizer))
    for i in range(STEPS):
        yield step(table[:, 8 * i : 8 * i + 8]), model, optimizer


@case
def slices_at_odd_places(accelerate):
    """The memory of a batch begins anywhere: alignment changes from step to step."""
    model, (rows, classes) = mlp(), data(8 * STEPS)
    optimizer, flat = sgd(model), data(8 * STEPS + 8)[0].view(-1)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x.view(8, 8)), y), optimizer))
    for i in range(STEPS):
        yield step(flat[63 * i : 63 * i + 64], classes[8 * i : 8 * i + 8]), model, optimizer


@case
def pairs_of_windows_of_one_tensor(accelerate):
    """Two windows on the same data, anywhere: now and then in another order."""
    model, rows = mlp(), data(200)[0]
    optimizer, (_, y) = sgd(model), data()
    step = accelerate(
        lambda a, b: descend(cross_entropy(model(a), y) + (model(a) - model(b)).square().mean(), optimizer))
    for i in range(STEPS):
        begin, other = 7 * i, (61 * i + 100) % 190
        yield step(rows[begin : begin + 8], rows[other : other + 8]), model, optimizer


@case
def crops_at_random_places(accelerate):
    model, source = mlp(), random.Random(1)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        top, left = source.randrange(8), source.randrange(8)
        return descend(cross_entropy(model(x[top : top + 8, left : left + 8] * 2), y), optimizer)

    for i in range(STEPS):
        yield step(torch.randn(16, 16, generator=torch.Generator().manual_seed(i)), data(seed=i)[1]), model, optimizer


@case
def data_sliced_inside_the_step(accelerate):
    model, (rows, classes) = mlp(), data(8 * STEPS)
    optimizer, position = sgd(model), 0

    @accelerate
    def step():
        nonlocal position
        x, y = rows[position : position + 8], classes[position : position + 8]
        position = (position + 8) % len(rows)
        return descend(cross_entropy(model(x), y), optimizer)

    for _ in range(STEPS):
        yield step(), model, optimizer, position


@case
def rows_chosen_by_a_permutation(accelerate):
    model, (rows, classes) = mlp(), data(8 * STEPS)
    optimizer, order = sgd(model), torch.randperm(8 * STEPS)
    step = accelerate(lambda i: descend(cross_entropy(model(rows[i]), classes[i]), optimizer))
    for i in order.split(8):
        yield step(i), model, optimizer


@case
def step_with_a_number_of_the_batch(accelerate):
    """The batch's number is an argument, read into a slice."""
    model, (rows, classes) = mlp(), data(8 * STEPS)
    optimizer = sgd(model)

    @accelerate
    def step(number):
        x, y = rows[8 * number : 8 * number + 8], classes[8 * number : 8 * number + 8]
        return descend(cross_entropy(model(x), y), optimizer)

    for number in range(STEPS):
        yield step(number), model, optimizer


# ---- transformers with their defaults


def llama():
    return LlamaForCausalLM(LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                                        num_attention_heads=2, num_key_value_heads=2, max_position_embeddings=32))


def gpt2():
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_embd=16, n_layer=2, n_head=2, n_positions=32, resid_pdrop=0.0,
                                      embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=1, eos_token_id=2))


def text(i):
    return torch.randint(3, 32, (2, 8), generator=torch.Generator().manual_seed(i))


@case
def llama_with_its_cache(accelerate):
    model = llama()
    optimizer = adam(model)
    step = accelerate(lambda tokens: descend(model(input_ids=tokens, labels=tokens).loss, optimizer))
    for i in range(STEPS):
        yield step(text(i)), model, optimizer


@case
def gpt2_with_its_cache(accelerate):
    """The gradient of a key's bias is zero but for rounding, which Adam would make as large as any step."""
    model = gpt2()
    optimizer = sgd(model)
    step = accelerate(lambda tokens: descend(model(input_ids=tokens, labels=tokens).loss, optimizer))
    for i in range(STEPS):
        yield step(text(i)), model, optimizer


@case
def output_with_its_cache_returned(accelerate):
    model = llama()
    optimizer = adam(model)

    @accelerate
    def step(tokens):
        output = model(input_ids=tokens, labels=tokens)
        descend(output.loss, optimizer)
        return output

    for i in range(STEPS):
        output = step(text(i))
        layer = output.past_key_values.layers[1]
        yield (output.loss, output.logits, layer.keys, layer.values), model, optimizer


@case
def loop_with_its_cache(accelerate):
    model = llama()
    model, optimizer = accelerate(model, adam(model))
    for i in range(STEPS):
        output = model(input_ids=text(i), labels=text(i))
        descend(output.loss, optimizer)
        yield (output.loss, output.logits), model, optimizer


@case
def scheduler_of_transformers(accelerate):
    model = llama()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = get_cosine_schedule_with_warmup(optimizer, 3, STEPS)

    @accelerate
    def step(tokens):
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss, norm

    for i in range(STEPS):
        yield step(text(i)), model, optimizer, scheduler


# ---- modes and flags


@case
def train_and_eval_in_turn(accelerate):
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = sgd(model, lr=0.02)
    held_out, classes = data(seed=99)

    @accelerate
    def step(x, y):
        model.train()
        return descend(cross_entropy(model(x), y), optimizer)

    for _, x, y in batches(14):
        loss = step(x, y)
        model.eval()
        with torch.no_grad():
            score = cross_entropy(model(held_out), classes)
        yield (loss, score), model, optimizer


@case
def training_and_evaluation_in_one_function(accelerate):
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 4))
    optimizer = sgd(model, lr=0.02)

    @accelerate
    def step(x, y, train):
        model.train(train)
        with torch.set_grad_enabled(train):
            loss = cross_entropy(model(x), y)
        return descend(loss, optimizer) if train else loss

    for i, x, y in batches(20):
        yield step(x, y, i % 3 != 2), model, optimizer


@case
def batch_that_requires_gradients(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        x.requires_grad_()
        loss = descend(cross_entropy(model(x), y), optimizer)
        return loss, x.grad

    yield from fit(step, model, optimizer)


@case
def batch_that_comes_with_requires_grad(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for _, x, y in batches():
        x = x.requires_grad_()
        yield step(x, y), model, optimizer, x.grad


@case
def attack_inside_the_step(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        x.requires_grad_(True)
        (slope,) = torch.autograd.grad(cross_entropy(model(x), y), x)
        return descend(cross_entropy(model((x + 0.05 * slope.sign()).detach()), y), optimizer)

    yield from fit(step, model, optimizer)


@case
def batch_dict_that_the_step_writes_into(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(batch):
        batch["logits"] = model(batch["x"])
        batch["loss"] = cross_entropy(batch["logits"], batch["y"])
        descend(batch["loss"], optimizer)
        return batch["loss"]

    for _, x, y in batches():
        batch = {"x": x, "y": y}
        loss = step(batch)
        yield loss, model, optimizer, sorted(batch), batch["logits"]


@case
def batch_dict_that_the_step_takes_from(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(batch):
        y = batch.pop("y")
        return descend(cross_entropy(model(**batch), y), optimizer)

    model.forward = lambda x: nn.Sequential.forward(model, x)
    for _, x, y in batches():
        batch = {"x": x, "y": y}
        yield step(batch), model, optimizer, sorted(batch)


@case
def zeroed_first(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        optimizer.zero_grad()
        loss = cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    yield from fit(step, model, optimizer)


# ---- where things are


@case
def optimizer_of_a_module(accelerate):
    class Learner(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()
            self.optimizer = adam(self.net)

        def forward(self, x):
            return self.net(x)

        def learn(self, x, y):
            return descend(cross_entropy(self(x), y), self.optimizer)

    learner = Learner()
    step = accelerate(learner.learn)
    yield from fit(step, learner, learner.optimizer)


@case
def optimizer_passed_in(accelerate):
    model = mlp()
    optimizer = adam(model)
    step = accelerate(lambda optimizer, x, y: descend(cross_entropy(model(x), y), optimizer))
    for i, x, y in batches():
        optimizer.param_groups[0]["lr"] = 1e-2 * 0.9**i
        yield step(optimizer, x, y), model, optimizer


@case
def everything_passed_in(accelerate):
    @accelerate
    def train_step(model, optimizer, criterion, x, y):
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss

    model = mlp()
    optimizer, criterion = sgd(model), nn.CrossEntropyLoss()
    for _, x, y in batches():
        yield train_step(model, optimizer, criterion, x, y), model, optimizer


@case
def closure_given_to_the_optimizer(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        def closure():
            optimizer.zero_grad()
            loss = cross_entropy(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    yield from fit(step, model, optimizer)


@case
def methods_instead_of_forward(accelerate):
    class Lightning(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()

        def training_step(self, batch):
            x, y = batch
            return {"loss": cross_entropy(self.net(x), y)}

        def configure_optimizers(self):
            return adam(self)

    model = Lightning()
    optimizer = model.configure_optimizers()
    step = accelerate(lambda batch: descend(model.training_step(batch)["loss"], optimizer))
    for _, x, y in batches():
        yield step((x, y)), model, optimizer


@case
def forward_that_a_library_replaces(accelerate):
    model = mlp()
    optimizer, forward = sgd(model), model.forward

    @functools.wraps(forward)
    def cast(x):
        return forward(x.float()).float()

    model.forward = cast
    yield from fit(accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer)), model, optimizer)


@case
def prepared_by_accelerate_before(accelerate):
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    model = mlp()
    model, optimizer = accelerator.prepare(model, sgd(model))

    @accelerate
    def step(x, y):
        loss = cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for _, x, y in batches():
        yield step(x, y), model


@case
def loop_prepared_by_accelerate_after(accelerate):
    from accelerate import Accelerator

    accelerator, model = Accelerator(cpu=True), mlp()
    ours, ours_optimizer = accelerate(model, sgd(model))
    model, optimizer = accelerator.prepare(ours, ours_optimizer)
    for _, x, y in batches():
        loss = cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        yield loss, ours, ours_optimizer


@case
def loop_prepared_by_accelerate_before(accelerate):
    from accelerate import Accelerator

    accelerator, model = Accelerator(cpu=True), mlp()
    model, optimizer = accelerator.prepare(model, sgd(model))
    model, optimizer = accelerate(model, optimizer)
    for _, x, y in batches():
        loss = cross_entropy(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        yield loss, model


# ---- what is returned and how it is called


@case
def count_over_the_batch(accelerate):
    model, total = mlp(), 0
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        logits = model(x)
        loss = descend(cross_entropy(logits, y), optimizer)
        correct = (logits.argmax(-1) == y).sum()
        return loss.item(), correct.sum().item() / len(y), f"{100 * correct.item() / len(y):.1f} %"

    yield from fit(step, model, optimizer)


@case
def two_lengths_in_turn(accelerate):
    model = nn.Sequential(nn.Embedding(4, 8), nn.Linear(8, 4))
    optimizer, lengths = sgd(model), itertools.cycle([8, 6])
    step = accelerate(lambda x: descend(cross_entropy(model(x[:-1]), x[1:]), optimizer))
    for _, _, y in batches(20):
        yield step(y[: next(lengths)]), model, optimizer


@case
def micro_batches_in_a_loop_of_python(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        total = 0.0
        for part, classes in zip(x.split(2), y.split(2)):
            loss = cross_entropy(model(part), classes) / 4
            loss.backward()
            total += loss.detach()
        optimizer.step()
        optimizer.zero_grad()
        return total

    yield from fit(step, model, optimizer)


@case
def several_steps_in_one_call(accelerate):
    model = mlp()
    optimizer = sgd(model)

    @accelerate
    def epoch(rows):
        return [descend(cross_entropy(model(x), y), optimizer) for x, y in rows]

    for i in range(STEPS):
        yield epoch([data(seed=3 * i + k) for k in range(3)]), model, optimizer


@case
def keyword_arguments_in_any_order(accelerate):
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda *, x, y, weight=1.0: descend(cross_entropy(model(x), y) * weight, optimizer))
    for i, x, y in batches(16):
        yield step(y=y, x=x) if i % 2 else step(x=x, y=y), model, optimizer


@case
def nothing_returned(accelerate):
    model, state = mlp(), types.SimpleNamespace(loss=None)
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        state.loss = descend(cross_entropy(model(x), y), optimizer).detach()

    for _, x, y in batches():
        yield step(x, y), model, optimizer, state.loss


@case
def scaler_with_skipped_steps(accelerate):
    model = mlp()
    optimizer, scaler = sgd(model), torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)

    @accelerate
    def step(x, y):
        loss = cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        return loss

    for i, x, y in batches(18):
        yield step(x * (float("inf") if i in (2, 7) else 1.0), y), model, optimizer, scaler.get_scale()


@case(draws=True)
def dropout(accelerate):
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 4))
    optimizer = sgd(model)
    yield from fit(accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer)), model, optimizer)


@case
def frozen_half_of_the_time(accelerate):
    """Progressive unfreezing and back."""
    model = mlp()
    optimizer = sgd(model)
    step = accelerate(lambda x, y: descend(cross_entropy(model(x), y), optimizer))
    for i, x, y in batches(18):
        model[0].requires_grad_(CHANGE <= i < 10 or i >= 15)
        yield step(x, y), model, optimizer


@case
def hidden_state_in_a_tuple(accelerate):
    """Truncated backpropagation through time; a new sequence begins now and then."""
    cell, head = nn.LSTM(FEATURES, HIDDEN), nn.Linear(HIDDEN, CLASSES)
    optimizer, carried = adam(cell, head), {}

    @accelerate
    def step(x, y):
        out, (hidden, memory) = cell(x.unsqueeze(0), carried.get("state"))
        carried["state"] = hidden.detach(), memory.detach()
        return descend(cross_entropy(head(out.squeeze(0)), y), optimizer)

    for i, x, y in batches(34):
        if i % 7 == 0:
            carried.clear()
        yield step(x, y), cell, head, optimizer, list(carried["state"])


# ---- of two tasks, of a teacher


@case
def conflicting_gradients_projected_on_copies(accelerate):
    """PCGrad, as it is mostly written: with deepcopy() of the list of flat gradients."""
    body, heads = nn.Linear(FEATURES, HIDDEN), nn.ModuleList(nn.Linear(HIDDEN, CLASSES) for _ in range(2))
    optimizer = adam(body, heads)

    @accelerate
    def step(x, y):
        hidden = torch.relu(body(x))
        losses = [cross_entropy(heads[0](hidden), y), heads[1](hidden).abs().mean()]
        flat = []
        for loss in losses:
            optimizer.zero_grad()
            loss.backward(retain_graph=True)
            flat.append(torch.cat([p.grad.flatten() for p in body.parameters()]))
        projected = copy.deepcopy(flat)
        for one, other in zip(projected, reversed(flat)):
            one -= torch.dot(one, other).clamp(max=0) * other / other.norm() ** 2
        merged, at = torch.stack(projected).mean(0), 0
        for p in body.parameters():
            p.grad = merged[at : at + p.numel()].view_as(p).clone()
            at += p.numel()
        optimizer.step()
        return [loss.item() for loss in losses]

    yield from fit(step, body, heads, optimizer)


@case
def copies_that_share_memory(accelerate):
    """A deep copy of tensors on one storage has one storage, too."""
    model, kept = mlp(), []
    optimizer = sgd(model)

    @accelerate
    def step(x, y):
        one = x * 2
        first, second, apart = copy.deepcopy([one, one.view(-1), x])
        first += 1
        kept.append(float(second.sum() + apart.sum()))
        return descend(cross_entropy(model(first), y), optimizer)

    for _, x, y in batches():
        yield step(x, y), model, optimizer, list(kept)


@case
def teacher_in_inference_mode(accelerate):
    """Its dropout does nothing there; the temperature falls."""
    model, state = mlp(), types.SimpleNamespace(temperature=4.0)
    teacher, optimizer = nn.Sequential(mlp(), nn.Dropout(0.5)).eval(), sgd(model)

    @accelerate
    def step(x, y):
        with torch.inference_mode():
            wanted = teacher(x)
        near = nn.functional.kl_div(nn.functional.log_softmax(model(x) / state.temperature, 1),
                                    nn.functional.softmax(wanted / state.temperature, 1), reduction="batchmean")
        state.temperature = max(1.0, state.temperature * 0.95)
        return descend(near + cross_entropy(model(x), y), optimizer)

    for _, x, y in batches():
        yield step(x, y), model, optimizer, state.temperature
