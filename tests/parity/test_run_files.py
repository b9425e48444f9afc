"""The files that a run leaves, in the hands of the programs that they are for."""

import json
import os
import re
import shutil
import time
from html.parser import HTMLParser

import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from transformers import AutoModelForCausalLM


def metrics_of(path):
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


def events_of(path):
    accumulator = EventAccumulator(str(path), size_guidance={"scalars": 0}).Reload()
    return {tag: [(event.step, event.wall_time, event.value) for event in accumulator.Scalars(tag)]
            for tag in accumulator.Tags()["scalars"]}


def expect_same_numbers(path):
    expected = {}
    for line in metrics_of(path):
        for key, value in line.items():
            if key not in ("step", "time"):
                expected.setdefault(key, []).append((line["step"], line["time"], torch.tensor(value).item()))
    assert events_of(path) == expected
    assert {"loss", "lr", "held_out_loss", "tokens_per_second"} <= expected.keys()


def test_tensorboard_reads_the_numbers_of_metrics(stepc):
    assert stepc("train", "run.toml", "--train.steps=6", "--output.save_every=3").returncode == 0
    expect_same_numbers(stepc.path / "out")
    first, *_ = EventFileLoader(str(stepc.path / "out/events.out.tfevents.stepc")).Load()
    assert first.file_version == "brain.Event:2"
    assert stepc("train", "run.toml", "--resume", "--train.steps=9").returncode == 0
    assert [step for step, _, _ in events_of(stepc.path / "out")["loss"]] == list(range(1, 10))
    expect_same_numbers(stepc.path / "out")


def test_a_clock_that_goes_back_gives_one_row_a_step(stepc):
    """What a row belongs to is its step: here the first run's clock was a day ahead."""
    assert stepc("train", "run.toml", "--train.steps=5", "--output.save_every=2").returncode == 0
    shutil.rmtree(stepc.path / "out/checkpoint-000005", ignore_errors=True)
    rows = [line | {"time": line["time"] + 86_400} for line in metrics_of(stepc.path / "out")]
    (stepc.path / "out/metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for path in (stepc.path / "out").rglob("*"):
        os.utime(path, (time.time() + 86_400,) * 2)
    assert stepc("train", "run.toml", "--resume", "--train.steps=8").returncode == 0
    assert [line["step"] for line in metrics_of(stepc.path / "out") if "loss" in line] == list(range(1, 9))
    expect_same_numbers(stepc.path / "out")


def test_shards_load_in_transformers_and_here(stepc):
    """Cut in the same places, with the same index."""
    result = stepc("train", "run.toml", "--output.max_shard_gb=0.0015", "--output.save_every=2")
    assert result.returncode == 0, result.stderr
    ours, theirs = stepc.path / "out/model", stepc.path / "theirs"
    loaded = AutoModelForCausalLM.from_pretrained(ours, dtype=torch.float32)
    # As made, not as loaded: transformers 5 writes what it has loaded in another order, and so cuts it in other places.
    model = AutoModelForCausalLM.from_config(loaded.config)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(theirs, max_shard_size=1_500_000)
    index, their_index = (json.loads((path / "model.safetensors.index.json").read_text()) for path in [ours, theirs])
    assert index == their_index and len(set(index["weight_map"].values())) == 5
    for name, file in index["weight_map"].items():
        assert torch.equal(load_file(ours / file)[name], load_file(theirs / their_index["weight_map"][name])[name])
    assert stepc("train", "run.toml", "--resume", "--train.steps=6").returncode == 0
    assert stepc("eval", "run.toml", "--model", "theirs").returncode == 2  # it has no tokenizer
    for name in ["tokenizer.json", "tokenizer_config.json"]:
        (theirs / name).write_bytes((ours / name).read_bytes())
    assert stepc("train", "run.toml", "--model.path=theirs", "--output.dir=on").returncode == 0


class Page(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.links, self.words = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href", "xlink:href", "action")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_the_report_is_whole_and_alone(stepc):
    assert stepc("train", "run.toml", "--train.steps=30", "--output.save_every=10").returncode == 0
    text = (stepc.path / "out/report.html").read_text()
    page = Page(text)
    assert page.open == [] and page.links == [] and "script" not in page.tags
    assert not re.search(r"https?://|url\(|@import", text)
    assert page.tags.count("svg") == 5 and "nan" not in re.findall(r'points="([^"]*)"', text)[0]
    said = " ".join(page.words)
    for words in ["Loss", "nats per token", "Learning rate", "Throughput", "tokens a second", "Where the time went",
                  "planned", "measured", "live bytes of a training step", "optimizer state", "staging for saves", "[train]", "steps = 30"]:
        assert words in said, words
    held_out = [line["held_out_nats_per_byte"] for line in metrics_of(stepc.path / "out") if "held_out_loss" in line]
    assert f"{held_out[-1]:.4f}" in said


def test_inspect_says_what_is_there(stepc):
    assert stepc("train", "run.toml", "--model.compute=bfloat16").returncode == 0
    checkpoint = stepc("inspect", "out/checkpoint-000004").stdout
    assert re.search(r"step +4, next sample 8, seed 1, held-out loss \d", checkpoint)
    assert re.search(r"parameters +1\.8 M in 39 tensors: 1\.8 M f32", checkpoint)
    assert re.search(r"optimizer +exp_avg, exp_avg_sq, master: ", checkpoint)
    assert len(re.findall(r" [0-9a-f]{16} ok\n", checkpoint)) == \
        len(json.loads((stepc.path / "out/checkpoint-000004/manifest.json").read_text())["files"])
    assert "llama, 4 layers" in stepc("inspect", "model").stdout
    assert "every file is whole" in stepc("inspect", "out").stdout
    assert stepc("train", "run.toml", "--lora.rank=2", "--output.dir=adapted").returncode == 0
    adapted = stepc("inspect", "adapted/checkpoint-000004")
    assert adapted.returncode == 0 and re.search(r"adapter +.* k in \d+ tensors: .* k f32; an adapter of ", adapted.stdout)
    assert stepc("inspect", "adapted").returncode == stepc("inspect", "adapted/model").returncode == 0
    refused = stepc("inspect", ".")
    assert (refused.returncode, refused.stderr) == \
        (2, "stepc: .: neither a checkpoint (manifest.json), a model (config.json) nor a run is there\n")
