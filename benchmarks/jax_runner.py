"""The JAX runner of the benchmark: the Llama step of torch_runner.py as one jitted function that owns its state.

    jax_runner.py START_NPZ CONFIG_JSON PRECISION BATCH SEQ THREADS

START_NPZ holds the weights and the batches that `torch_runner.py start` wrote, so the losses are those of PyTorch.
Speaks the line protocol of benchmarks/README.md on stdin and stdout.
"""
import functools
import json
import os
import resource
import sys
import time

# Answers go to what was stdout; whatever the libraries print goes to the log.
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)


def answer(**fields):
    ANSWERS.write(json.dumps(fields) + "\n")


# XLA takes a thread for each processor that it may run on.
os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[-1])])
os.environ["JAX_PLATFORMS"] = "cpu"
try:
    import jax
except ImportError as error:
    answer(unavailable=f"JAX is not installed ({error}): tools/setup bench installs it")
    sys.exit()
import jax.numpy as jnp  # noqa: E402
import numpy  # noqa: E402

IMPORTED_AT = time.monotonic()
LEARNING_RATE, BETA1, BETA2, EPSILON, DECAY, MAX_NORM = 1e-4, 0.9, 0.999, 1e-8, 1e-2, 1.0  # torch.optim.AdamW's


def loss_of(weights, ids, config, autocast):
    """transformers' LlamaForCausalLM with its loss: mean cross-entropy in float32 of the next token."""
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    batch, seq = ids.shape
    width = config["hidden_size"] // heads

    def linear(name, x):
        weight = weights[name + ".weight"]
        if autocast:
            x, weight = x.astype(jnp.bfloat16), weight.astype(jnp.bfloat16)
        return x @ weight.T

    def norm(name, x):
        wide = x.astype(jnp.float32)
        wide = wide * jax.lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + config["rms_norm_eps"])
        return weights[name + ".weight"] * wide.astype(x.dtype)

    frequencies = config["rope_theta"] ** (-jnp.arange(0, width, 2, dtype=jnp.float32) / width)
    angles = jnp.outer(jnp.arange(seq, dtype=jnp.float32), frequencies)
    angles = jnp.concatenate([angles, angles], -1)[None, :, None, :]  # (1, seq, 1, width)

    def rotated(x):
        cos, sin = jnp.cos(angles).astype(hidden.dtype), jnp.sin(angles).astype(hidden.dtype)
        low, high = jnp.split(x, 2, -1)
        return x * cos + jnp.concatenate([-high, low], -1) * sin

    hidden = weights["model.embed_tokens.weight"][ids]
    for index in range(config["num_hidden_layers"]):
        layer = f"model.layers.{index}."
        x = norm(layer + "input_layernorm", hidden)
        query, key, value = (linear(f"{layer}self_attn.{name}_proj", x).reshape(batch, seq, count, width)
                             for name, count in (("q", heads), ("k", groups), ("v", groups)))
        query, key = rotated(query).astype(value.dtype), rotated(key).astype(value.dtype)
        x = jax.nn.dot_product_attention(query, key, value, is_causal=True).reshape(batch, seq, heads * width)
        hidden = hidden + linear(layer + "self_attn.o_proj", x)
        x = norm(layer + "post_attention_layernorm", hidden)
        x = jax.nn.silu(linear(layer + "mlp.gate_proj", x)) * linear(layer + "mlp.up_proj", x)
        hidden = hidden + linear(layer + "mlp.down_proj", x)
    head = "model.embed_tokens" if config["tie_word_embeddings"] else "lm_head"
    logits = linear(head, norm("model.norm", hidden))[:, :-1].astype(jnp.float32)
    chosen = jnp.take_along_axis(logits, ids[:, 1:, None], -1)[..., 0]
    return jnp.mean(jax.nn.logsumexp(logits, -1) - chosen)


def step(state, ids, config, autocast):
    """Forward, backward, clipping and AdamW; states and weights keep their type, the update is made in float32."""
    weights, first, second, count = state
    loss, grads = jax.value_and_grad(loss_of)(weights, ids, config, autocast)
    squares = [jnp.sum(jnp.square(grad.astype(jnp.float32))) for grad in grads.values()]
    scale = jnp.minimum(1.0, MAX_NORM / (jnp.sqrt(sum(squares)) + 1e-6))
    count = count + 1

    def update(weight, grad, m, v):
        grad = (grad.astype(jnp.float32) * scale).astype(grad.dtype).astype(jnp.float32)  # clipped in its own type
        wide_m = BETA1 * m.astype(jnp.float32) + (1 - BETA1) * grad
        wide_v = BETA2 * v.astype(jnp.float32) + (1 - BETA2) * grad * grad
        change = (wide_m / (1 - BETA1**count)) / (jnp.sqrt(wide_v / (1 - BETA2**count)) + EPSILON)
        wide = weight.astype(jnp.float32) * (1 - LEARNING_RATE * DECAY) - LEARNING_RATE * change
        return wide.astype(weight.dtype), wide_m.astype(m.dtype), wide_v.astype(v.dtype)

    new = {name: update(weights[name], grads[name], first[name], second[name]) for name in weights}
    return (*({name: value[i] for name, value in new.items()} for i in range(3)), count), loss


class Trainer:
    def __init__(self, start, config, precision):
        with numpy.load(start) as arrays:
            self.batches = [jnp.asarray(ids) for ids in arrays["batches"]]
            dtype = jnp.bfloat16 if precision == "bf16" else jnp.float32
            weights = {name: jnp.asarray(arrays[name], dtype) for name in arrays.files if name != "batches"}
        zeros = [{name: jnp.zeros_like(weight) for name, weight in weights.items()} for _ in range(2)]
        self.state = (weights, *zeros, jnp.zeros((), jnp.float32))
        whole = functools.partial(step, config=config, autocast=precision == "autocast")
        self.jitted = jax.jit(whole, donate_argnums=0)
        self.compiled = None
        self.steps = 0

    def run(self, count):
        seconds = []
        for _ in range(count):
            begin = time.monotonic()
            ids = self.batches[self.steps % len(self.batches)]
            if self.compiled is None:
                self.compiled = self.jitted.lower(self.state, ids).compile()
            self.state, loss = self.compiled(self.state, ids)
            jax.block_until_ready((self.state, loss))
            self.steps += 1
            seconds.append(time.monotonic() - begin)
        answer(seconds=seconds, loss=float(loss), finished_at=time.monotonic())

    def memory(self):
        state = sum(value.nbytes for value in jax.tree.leaves((self.state, self.batches)))
        with open("/proc/self/statm") as statm:
            rss = int(statm.read().split()[1]) * resource.getpagesize()
        # XLA's plan; what is donated is counted with the state.
        sizes = self.compiled.memory_analysis()
        planned = state + sizes.temp_size_in_bytes + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
        answer(peak_rss_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, steady_rss_bytes=rss,
               state_bytes=state, planned_peak_bytes=planned)


def main():
    start, config_json, precision, _, _, _ = sys.argv[1:]
    answer(imported_at=IMPORTED_AT)
    trainer = Trainer(start, json.loads(config_json), precision)
    for line in sys.stdin:
        command, *arguments = line.split()
        if command == "run":
            trainer.run(int(arguments[0]))
        elif command == "memory":
            trainer.memory()
        elif command == "quit":
            return
        else:
            sys.exit(f"unknown command: {line.strip()}")


if __name__ == "__main__":
    main()
