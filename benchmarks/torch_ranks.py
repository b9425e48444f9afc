"""One rank of a PyTorch team of ranks_benchmark.py: a Hugging Face Llama with clipping and fused AdamW over Gloo.

    torch_ranks.py ddp|fsdp|tp CONFIG_JSON PRECISION BATCH SEQ   with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT

`ddp` is DistributedDataParallel, `fsdp` FSDP2: fully_shard() of every layer and of the model; `tp` is tensor and
sequence parallelism of every layer, embedding, head and loss by parallelize_module(). `run N` on every rank's stdin
takes N steps; rank 0 answers with their seconds. torch's context parallelism has no attention for the CPU.
"""
import datetime
import sys

from torch_runner import answer_rounds, config_of

import torch
import torch.distributed
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel, PrepareModuleInput, RowwiseParallel, SequenceParallel, loss_parallel, parallelize_module)
from torch.nn.parallel import DistributedDataParallel
from transformers import LlamaForCausalLM
from transformers.models.llama import modeling_llama


def split_over(mesh, model):
    """The plan of PyTorch's own tensor parallel tutorials; norms and what lies between the layers are sequence shards."""
    # transformers would make a mask of a rank's part of the sequence; without one, attention is causal over what it gets.
    modeling_llama.create_causal_mask = lambda *_, **__: None
    gathered = {"input_kwarg_layouts": {"hidden_states": Shard(1)}, "desired_input_kwarg_layouts": {"hidden_states": Replicate()}}
    parallelize_module(model, mesh, {
        "model.embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "model.norm": SequenceParallel(),
        "lm_head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Shard(-1), use_local_output=False)})
    for layer in model.model.layers:
        parallelize_module(layer, mesh, {
            "input_layernorm": SequenceParallel(),
            "self_attn": PrepareModuleInput(**gathered),
            **{f"self_attn.{name}_proj": ColwiseParallel() for name in "qkv"},
            "self_attn.o_proj": RowwiseParallel(output_layouts=Shard(1)),
            "post_attention_layernorm": SequenceParallel(),
            "mlp": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
            "mlp.gate_proj": ColwiseParallel(),
            "mlp.up_proj": ColwiseParallel(),
            "mlp.down_proj": RowwiseParallel(output_layouts=Shard(1))})


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
    mesh = torch.distributed.init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    if kind == "ddp":
        model = DistributedDataParallel(model)
    elif kind == "tp":
        split_over(mesh, model)
    else:
        for layer in model.model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6, fused=True)
    rows = int(batch) // (1 if kind == "tp" else torch.distributed.get_world_size())
    ids = torch.randint(config.vocab_size, (rows, int(seq)))
    positions = torch.arange(int(seq))[None]  # of the whole sequence, also where a rank holds a part of it

    def step():
        if kind == "tp":
            with loss_parallel():
                logits = model(input_ids=ids, position_ids=positions, use_cache=False).logits
                loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten())
                loss.backward()
        else:
            model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    answer_rounds("torch_tp" if kind == "tp" else kind, step)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
