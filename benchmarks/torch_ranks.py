"""One rank of a PyTorch team of ranks_benchmark.py: a Hugging Face Llama with clipping and fused AdamW over Gloo.

    torch_ranks.py ddp|fsdp CONFIG_JSON PRECISION BATCH SEQ      with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT

`ddp` is DistributedDataParallel, `fsdp` FSDP2: fully_shard() of every layer and of the model. `run N` on every rank's
stdin takes N steps; rank 0 answers with their seconds.
"""
import datetime
import sys
import time

from torch_runner import answer, config_of

import torch
import torch.distributed
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaForCausalLM


def main():
    kind, config_json, precision, batch, seq = sys.argv[1:]
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", timeout=datetime.timedelta(hours=1))
    config = config_of(config_json)
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    if precision == "bfloat16":
        model.bfloat16()
    model.train()
    if kind == "ddp":
        model = DistributedDataParallel(model)
    else:
        mesh = torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    rows = int(batch) // torch.distributed.get_world_size()
    ids = torch.randint(config.vocab_size, (rows, int(seq)))

    def step():
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    for line in sys.stdin:
        seconds = []
        for _ in range(int(line.split()[1])):
            torch.distributed.barrier()
            begin = time.monotonic()
            step()
            torch.distributed.barrier()
            seconds.append(time.monotonic() - begin)
        if torch.distributed.get_rank() == 0:
            answer(**{kind: seconds})
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
