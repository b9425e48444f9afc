"""What capture and replay cost from Python, on unmodified transformers models, eager and accelerated interleaved.

    PYTHONPATH=build/release/python .venv/bin/python benchmarks/capture_benchmark.py [--large]

Prints one row a model: recorder's own time an ATen call, time a replayed instruction of the smallest model (whose
kernels are next to nothing), what step(batch) costs beside the replay and the optimizer's host code, what a traced step
(whose own Python runs beside the plan) takes a call above eager's host time, each in calls that follow each other, as in
a training loop; and the speed beside eager of both (median of paired steps); then the same of tracing on tensors of one
element, whose kernels are nothing; then each limit and whether it was reached. With --large instead: which part of a
traced step of the 134M model its own Python takes. With --changing instead: steps that are never twice the same, or that
take long to be: what they take of eager's time in the long run, and how many of them are recorded first.
"""

import collections
import random
import statistics
import sys
import time

import numpy
import torch
import transformers

import stepc

# name, layers, width, vocabulary, batch, sequence, threads, steps
MODELS = (
    ("host overhead, 12 layers", 12, 16, 64, 1, 4, 1, 60),
    ("4-layer toy", 4, 64, 256, 4, 32, 1, 60),
    ("1.8M", 4, 128, 4096, 4, 128, 2, 40),
)
LARGE = 12, 768, 32000
OPS = 200  # of one element each, beside their backward pass


def build(layers, width, vocabulary):
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=width * 3, num_hidden_layers=layers,
        num_attention_heads=max(1, width // 32), use_cache=False,
    )
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)

    def train_step(ids):
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return train_step


def times_of(way, batches, steps):
    """Median of calls that follow each other, as in a training loop."""
    times = []
    for i in range(steps):
        begin = time.perf_counter()
        way(batches[i % len(batches)])
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def measure(name, layers, width, vocabulary, batch, sequence, threads, steps):
    torch.set_num_threads(threads)
    eager, step = build(layers, width, vocabulary), stepc.accelerate(build(layers, width, vocabulary))
    traced = stepc.accelerate(build(layers, width, vocabulary), config=stepc.Config(python="trace"))
    batches = [torch.randint(vocabulary, (batch, sequence)) for _ in range(8)]
    for i in range(20):
        for way in (eager, step, traced):
            way(batches[i % 8])
    assert step.stats["replays"] >= 1 and not step.stats["traced"], step.stats
    assert traced.stats["replays"] >= 1, traced.stats["warnings"]
    ratios, traced_ratios = [], []
    for i in range(steps):
        eager_s, step_s, traced_s = (times_of(way, [batches[i % 8]], 1) for way in (eager, step, traced))
        ratios.append(eager_s / step_s)
        traced_ratios.append(eager_s / traced_s)
    eager_s = times_of(eager, batches, steps)
    before = step.stats
    step_s = times_of(step, batches, steps)
    after = step.stats
    execute, shadow = ((after[k] - before[k]) / steps for k in ("execute_seconds", "shadow_seconds"))
    before = traced.stats
    traced_s = times_of(traced, batches, steps)
    in_plan = (traced.stats["execute_seconds"] - before["execute_seconds"]) / steps
    return {
        "name": name,
        "calls": after["nodes"],
        "recorder_us_a_call": 1e6 * after["capture_seconds"] / after["recordings"] / after["nodes"],
        "replay_us_an_instruction": 1e6 * execute / after["instructions"],
        "step_us": 1e6 * (step_s - execute - shadow),
        "optimizer_host_us": 1e6 * shadow,
        "speed_of_eager": statistics.median(ratios),
        "traced_us_a_call": 1e6 * (traced_s - in_plan - eager_s) / after["nodes"],
        "traced_of_eager": statistics.median(traced_ratios),
    }


def on_one_element():
    """What tracing takes a call above eager, where kernels take next to no time."""
    torch.set_num_threads(1)

    def made():
        w = torch.ones(1, requires_grad=True)
        optimizer = torch.optim.SGD([w], lr=1e-6)

        def step(x):
            for _ in range(OPS):
                x = x * w
            x.backward()
            optimizer.step()
            optimizer.zero_grad()
            return x

        return step

    eager, traced = made(), stepc.accelerate(made(), config=stepc.Config(python="trace"))
    batches = [torch.ones(1) for _ in range(8)]
    for i in range(20):
        eager(batches[i % 8])
        traced(batches[i % 8])
    eager_s = times_of(eager, batches, 200)
    before = traced.stats
    traced_s = times_of(traced, batches, 200)
    after = traced.stats
    assert after["replays"] == before["replays"] + 200, after
    in_plan = (after["execute_seconds"] - before["execute_seconds"]) / 200
    return 1e6 * (traced_s - in_plan - eager_s) / after["nodes"]


def python_of_large():
    """The part of a traced step of the 134M model that is not the plan's."""
    torch.set_num_threads(2)
    traced = stepc.accelerate(build(*LARGE), config=stepc.Config(python="trace"))
    batch = torch.randint(LARGE[-1], (4, 512))
    while traced.stats["replays"] < 2:
        traced(batch)
    before, steps = traced.stats, 4
    seconds = times_of(traced, [batch], steps)
    return 1 - (traced.stats["execute_seconds"] - before["execute_seconds"]) / steps / seconds


# ---- steps that change from call to call


def descend(loss, optimizer):
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()


def boxes_at_random_places():
    """CutMix: the bounds of the slices are other integers at every step."""
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool2d(2), torch.nn.Conv2d(16, 32, 3, padding=1),
        torch.nn.ReLU(), torch.nn.AdaptiveAvgPool2d(4), torch.nn.Flatten(), torch.nn.Linear(512, 10),
    )
    optimizer, draws = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9), numpy.random.default_rng(0)
    images, classes = torch.randn(32, 3, 32, 32), torch.randint(10, (32,))

    def step():
        cut = int(32 * (1 - draws.beta(1, 1)) ** 0.5)
        (left, top), order = draws.integers(0, 33 - cut, 2), torch.from_numpy(draws.permutation(32))
        x = images.clone()
        x[:, :, top : top + cut, left : left + cut] = images[order, :, top : top + cut, left : left + cut]
        kept, logits = 1 - (cut / 32) ** 2, model(x)
        loss = torch.nn.functional.cross_entropy
        return descend(kept * loss(logits, classes) + (1 - kept) * loss(logits, classes[order]), optimizer)

    return step


def perceptron(dropout=0.0):
    return torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.ReLU(), torch.nn.Dropout(dropout), torch.nn.Linear(512, 512), torch.nn.ReLU(),
        torch.nn.Linear(512, 10),
    )


def hard_examples():
    """A boolean index: as many rows as the data say."""
    model, batches = perceptron(), [(torch.randn(128, 256), torch.randint(10, (128,))) for _ in range(16)]
    optimizer, number = torch.optim.SGD(model.parameters(), lr=1e-3), iter(range(1 << 30))

    def step():
        x, y = batches[next(number) % 16]
        losses = torch.nn.functional.cross_entropy(model(x), y, reduction="none")
        return descend(losses[losses > losses.mean()].mean(), optimizer)

    return step


def seed_of_each_step():
    model, x, y = perceptron(0.1), torch.randn(128, 256), torch.randint(10, (128,))
    optimizer, number = torch.optim.SGD(model.parameters(), lr=1e-3), iter(range(1 << 30))

    def step():
        torch.manual_seed(next(number))
        return descend(torch.nn.functional.cross_entropy(model(x), y), optimizer)

    return step


def lbfgs():
    model, x, y = perceptron(), torch.randn(128, 256), torch.randint(10, (128,))
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4, history_size=4)

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    return lambda: optimizer.step(closure)


def memory_of_transitions():
    """DQN: a sample of a deque that the program fills."""
    model, target, draws = perceptron(), perceptron(), random.Random(0)
    optimizer, memory = torch.optim.Adam(model.parameters()), collections.deque(maxlen=512)

    def observe():
        memory.append((torch.randn(256), draws.randrange(10), draws.random(), torch.randn(256)))

    for _ in range(200):
        observe()

    def learn():
        states, actions, rewards, nexts = zip(*draws.sample(memory, 64))
        with torch.no_grad():
            wanted = torch.tensor(rewards) + 0.9 * target(torch.stack(nexts)).max(1).values
        values = model(torch.stack(states)).gather(1, torch.tensor(actions)[:, None])[:, 0]
        return descend(torch.nn.functional.smooth_l1_loss(values, wanted), optimizer)

    return learn, observe


def lists_of_numbers():
    """Token ids as Python lists."""
    model, embedding, draws = perceptron(), torch.nn.Embedding(100, 256), random.Random(0)
    optimizer = torch.optim.SGD([*model.parameters(), *embedding.parameters()], lr=1e-3)

    def step(ids):
        return descend(model(embedding(torch.tensor(ids)).mean(1)).square().mean(), optimizer)

    return step, None, lambda: ([[draws.randrange(100) for _ in range(32)] for _ in range(16)],)


def texts_beside_tensors():
    model, x = perceptron(), torch.randn(64, 256)
    optimizer, number = torch.optim.SGD(model.parameters(), lr=1e-3), iter(range(1 << 30))

    def given():
        i = next(number)
        return ({"x": x, "texts": [f"text {i} {j}" for j in range(64)], "ids": list(range(i, i + 64))},)

    return lambda batch: descend(model(batch["x"]).square().mean(), optimizer), None, given


def garbage_in_cycles():
    """The step leaves objects that refer to themselves, and to its tensors."""
    model, x, losses = perceptron(), torch.randn(64, 256), []
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    class Context:
        pass

    def step():
        context = Context()
        context.itself, context.hidden = context, model[:2](x)
        losses.append(None)
        return descend(model[2:](context.hidden).square().mean(), optimizer)

    return step


CHANGING = (boxes_at_random_places, hard_examples, seed_of_each_step, lbfgs, memory_of_transitions, lists_of_numbers,
            texts_beside_tensors, garbage_in_cycles)
UNTIL_THEN, COMPARED = 120, 60  # steps


def measure_changing(make):
    """(times of eager, of which the steps before the long run; recordings, steps before the first replay, how it ran)."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    eager, accelerated = made = [], []
    for ways in made:
        parts = make()
        step, between, given, *_ = (*parts, None, None) if isinstance(parts, tuple) else (parts, None, None)
        ways += [step, between or (lambda: None), given or (lambda: ())]
    step = stepc.accelerate(accelerated[0])
    seconds, first, before = ([], []), None, [0.0, 0.0]
    for i in range(UNTIL_THEN + COMPARED):
        for which, (way, between, given) in enumerate((eager, (step, *accelerated[1:]))):
            batch = given()
            begin = time.perf_counter()
            way(*batch)
            took = time.perf_counter() - begin
            between()
            if i < UNTIL_THEN:
                before[which] += took
            else:
                seconds[which].append(took)
        if first is None and step.stats["replays"] > 0:
            first = i
    long_run = statistics.median(b / a for a, b in zip(*seconds))
    stats = step.stats
    return long_run, before[1] / before[0], stats["recordings"], first, "replayed" if not stats["warnings"] else "eager"


def changing():
    print(f"{'step':<26} {'of eager':>9} {'at first':>9} {'recordings':>11} {'replay after':>13}  in the end")
    rows = {make.__name__.replace("_", " "): measure_changing(make) for make in CHANGING}
    for name, (long_run, at_first, recordings, first, how) in rows.items():
        print(f"{name:<26} {long_run:>9.2f} {at_first:>9.2f} {recordings:>11} {'-' if first is None else first:>13}  {how}")
    for name, row in rows.items():
        say(f"{name}: x eager's time in the long run", row[0], 1.2, False)


def main():
    transformers.logging.set_verbosity_error()
    if "--changing" in sys.argv[1:]:
        return changing()
    if "--large" in sys.argv[1:]:
        return say("own Python of a traced step of the 134M model, % of it", 100 * python_of_large(), 3, False)
    rows = {row[0]: measure(*row) for row in MODELS}
    print(f"{'model':<26} {'calls':>6} {'recorder':>9} {'replay':>8} {'step()':>8} {'optimizer':>10} {'of eager':>9} "
          f"{'traced':>8} {'of eager':>9}")
    print(f"{'':<26} {'':>6} {'us/call':>9} {'us/instr':>8} {'us':>8} {'host us':>10} {'x':>9} {'us/call':>8} {'x':>9}")
    for row in rows.values():
        print(f"{row['name']:<26} {row['calls']:>6} {row['recorder_us_a_call']:>9.1f} "
              f"{row['replay_us_an_instruction']:>8.2f} {row['step_us']:>8.0f} {row['optimizer_host_us']:>10.0f} "
              f"{row['speed_of_eager']:>9.2f} {row['traced_us_a_call']:>8.1f} {row['traced_of_eager']:>9.2f}")
    small, toy, larger = rows.values()
    for what, value, limit, good in (
        ("recorder, us a call", max(row["recorder_us_a_call"] for row in rows.values()), 5, False),
        ("replay, us an instruction of next to no work", small["replay_us_an_instruction"], 1, False),
        ("step() at 12 layers beside replay and optimizer, us", small["step_us"], 100, False),
        ("watched step() at 12 layers beside the replay, us", small["step_us"] + small["optimizer_host_us"], 150, False),
        ("traced step at 12 layers above eager's host time, us a call", small["traced_us_a_call"], 4, False),
        ("traced step on one element above eager's host time, us a call", on_one_element(), 4, False),
        ("1.8M model, x eager", larger["speed_of_eager"], 1.1, True),
        ("4-layer toy, x eager", toy["speed_of_eager"], 1.3, True),
    ):
        say(what, value, limit, good)


def say(what, value, limit, good):
    reached = value >= limit if good else value <= limit
    print(f"{'reached' if reached else 'MISSED ':<8} {what}: {value:.2f}, limit {limit}")


if __name__ == "__main__":
    main()
