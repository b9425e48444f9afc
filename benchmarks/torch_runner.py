"""One PyTorch runner of the benchmark: a Hugging Face Llama with clipping and fused AdamW, eager or under torch.compile.

    torch_runner.py eager|compile CONFIG_JSON PRECISION BATCH SEQ THREADS
    torch_runner.py start NPZ CONFIG_JSON BATCH SEQ       writes the weights and batches that the other modes start from

Speaks the line protocol of benchmarks/README.md on stdin and stdout.
"""
import json
import os
import resource
import sys
import time

# Answers go to what was stdout; whatever the libraries print goes to the log.
ANSWERS = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)

import numpy  # noqa: E402
import torch  # noqa: E402
from transformers import LlamaConfig, LlamaForCausalLM  # noqa: E402

IMPORTED_AT = time.monotonic()
BATCHES = 8


def answer(**fields):
    ANSWERS.write(json.dumps(fields) + "\n")


def answer_rounds(name, step, more=dict):
    """Of a rank: `run N` on stdin takes N steps between barriers; rank 0 answers with their seconds and what more() says."""
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line.split()[1])):
            torch.distributed.barrier()
            begin = time.monotonic()
            step()
            torch.distributed.barrier()
            seconds.append(time.monotonic() - begin)
        others = more()
        if torch.distributed.get_rank() == 0:
            answer(**{name: seconds, **others})


class Trainer:
    def __init__(self, mode, config, precision, batch, seq):
        torch.manual_seed(0)
        self.model = LlamaForCausalLM(config)
        if precision == "bf16":
            self.model.bfloat16()
        self.model.train()
        self.forward = torch.compile(self.model) if mode == "compile" else self.model
        self.autocast = precision == "autocast"
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4, fused=True)
        self.batches = [torch.randint(config.vocab_size, (batch, seq)) for _ in range(BATCHES)]
        self.steps = 0

    def step(self):
        ids = self.batches[self.steps % BATCHES]
        self.steps += 1
        with torch.autocast("cpu", torch.bfloat16, enabled=self.autocast):
            loss = self.forward(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    def run(self, count):
        seconds = []
        for _ in range(count):
            begin = time.monotonic()
            loss = self.step()
            seconds.append(time.monotonic() - begin)
        answer(seconds=seconds, loss=loss.item(), finished_at=time.monotonic())

    def state_bytes(self):
        tensors = [*self.model.parameters(), *self.model.buffers(), *self.batches]
        for state in self.optimizer.state.values():
            tensors += [value for value in state.values() if torch.is_tensor(value)]
        return sum(tensor.untyped_storage().nbytes() for tensor in tensors)

    def peak_live_bytes(self):
        """State, and the highest sum of what one more step allocates and frees, from the profiler's memory events."""
        state = self.state_bytes()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            self.step()
        events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
        live = peak = 0
        for event in sorted(events, key=lambda e: e.start_ns()):
            live += event.nbytes()
            peak = max(peak, live)
        return state, state + peak

    def memory(self):
        # Before the profiler, which needs memory itself.
        peak_rss = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        with open("/proc/self/statm") as statm:
            rss = int(statm.read().split()[1]) * resource.getpagesize()
        state, live = self.peak_live_bytes()
        answer(peak_rss_bytes=peak_rss, steady_rss_bytes=rss, state_bytes=state, measured_peak_bytes=live)


def write_start(path, config_json, batch, seq):
    trainer = Trainer("eager", config_of(config_json), "f32", int(batch), int(seq))
    arrays = {name: weight.detach().numpy() for name, weight in trainer.model.named_parameters()}
    with open(path, "wb") as file:
        numpy.savez(file, batches=torch.stack(trainer.batches).int().numpy(), **arrays)


def config_of(config_json):
    config = LlamaConfig.from_dict(json.loads(config_json))
    config.dtype = torch.float32
    return config


def main():
    if sys.argv[1] == "start":
        return write_start(*sys.argv[2:])
    mode, config_json, precision, batch, seq, threads = sys.argv[1:]
    torch.set_num_threads(int(threads))
    answer(imported_at=IMPORTED_AT)
    trainer = Trainer(mode, config_of(config_json), precision, int(batch), int(seq))
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
