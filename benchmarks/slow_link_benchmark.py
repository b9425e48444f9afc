#!/usr/bin/env python3
"""Exchanges beside the computation on a link that is slow enough to be felt, beside PyTorch's DDP and FSDP2 on the same link.

    benchmarks/slow_link_benchmark.py [--preset NAME] [--precision P] [--batch N] [--seq N] [--rounds N] [--share S]

Two ranks of one thread, each in a network namespace of its own; a pair of virtual Ethernet devices joins them, and a token
bucket on both ends (tc-tbf) limits its rate, so that this needs root, ip and tc. The rate is chosen for each of dp and
zero 3: its bare collectives take the share --share (0.3) of a step that hides nothing. Printed are the step with its
exchanges in a row, the step with `parallel.overlap`, what of its exchanges is hidden, what the graph lets hide (the gradient
that the backward pass gives last, and what the first computation waits for, hide behind nothing), and both of PyTorch.
"""
import argparse
import os
import shutil
import statistics
import subprocess
import sys

from ranks_benchmark import BUILD, ROOT, Team

NAMES = [f"stepc-slow-{os.getpid()}-{rank}" for rank in range(2)]
DEVICES = [f"sl{os.getpid() % 1000000}{rank}" for rank in range(2)]  # 15 characters at most
ADDRESSES = ["10.211.0.1", "10.211.0.2"]
UNLIMITED = 40e9  # bits a second


def run(*command):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"slow_link_benchmark: {' '.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()}")


class SlowLink:
    """Two network namespaces and what joins them, as long as the block that it is the context of."""

    def __enter__(self):
        try:
            for name in NAMES:
                run("ip", "netns", "add", name)
            run("ip", "link", "add", DEVICES[0], "type", "veth", "peer", "name", DEVICES[1])
            for name, device, address in zip(NAMES, DEVICES, ADDRESSES):
                run("ip", "link", "set", device, "netns", name)
                run("ip", "-n", name, "addr", "add", f"{address}/24", "dev", device)
                run("ip", "-n", name, "link", "set", device, "up")
                run("ip", "-n", name, "link", "set", "lo", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in NAMES:  # the devices go with them
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def limit(self, bits_a_second):
        for name, device in zip(NAMES, DEVICES):
            run("ip", "netns", "exec", name, "tc", "qdisc", "replace", "dev", device, "root", "tbf", "rate",
                f"{round(bits_a_second / 1e3)}kbit", "burst", "256kb", "latency", "200ms")

    def hosts(self):
        return [(["ip", "netns", "exec", name],
                 {"MASTER_ADDR": ADDRESSES[0], "GLOO_SOCKET_IFNAME": device, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1})
                for name, device in zip(NAMES, DEVICES)]


def medians(team, steps):
    return {name: statistics.median(values) for name, values in team.run(steps).items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"preset": "llama-134m", "precision": "bfloat16", "batch": 4, "seq": 256, "rounds": 5,
                          "steps": 2, "share": 0.3}.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    options = parser.parse_args()
    missing = [name for name in ("ip", "tc") if not shutil.which(name)] + (["root's rights"] if os.geteuid() else [])
    if missing:
        print(f"slow_link_benchmark: left out: it needs {' and '.join(missing)}")
        return
    shape = [options.precision, options.batch, options.seq]
    config = subprocess.run([BUILD / "stepc_runner", "config", options.preset], check=True, capture_output=True,
                            text=True).stdout
    torch_ranks = [sys.executable, ROOT / "benchmarks" / "torch_ranks.py"]
    print(f"{options.preset}, {options.precision}, {options.batch} x {options.seq} tokens on 2 ranks of one thread; median of "
          f"{options.rounds} rounds", flush=True)
    with SlowLink() as link:
        link.limit(UNLIMITED)
        ours = Team([BUILD / "ranks_benchmark", options.preset, *shape, "overlap"], 2, link.hosts())
        peers = {kind: Team([*torch_ranks, kind, config, *shape], 2, link.hosts()) for kind in ("ddp", "fsdp")}
        for team in [ours, *peers.values()]:
            team.run(1)
        for kind, peer in (("dp", "ddp"), ("zero3", "fsdp")):
            rate = 2e9
            for _ in range(3):  # what is not the link's, as sums, makes the first guesses wrong
                link.limit(rate)
                found = medians(ours, 1)
                wanted = found["alone"] * options.share / (1 - options.share)
                rate = min(rate * found[f"{kind}_bare"] / wanted, UNLIMITED)
            link.limit(rate)
            rows = []
            for _ in range(options.rounds):
                rows.append(medians(ours, options.steps) | medians(peers[peer], options.steps))
            of = lambda value: statistics.median(map(value, rows))
            bare, alone = (lambda row: row[f"{kind}_bare"]), (lambda row: row["alone"])
            hidden = of(lambda row: (alone(row) + bare(row) - row[f"{kind}_overlap"]) / bare(row))
            lets = of(lambda row: row[f"{kind}_hideable"])
            print(f"{kind}, at {rate / 1e9:.2f} Gbit/s")
            for text, seconds in [("a rank's rows alone", of(alone)), ("its collectives alone", of(bare)),
                                  ("step, exchanges in a row", of(lambda row: row[kind])),
                                  ("step with parallel.overlap", of(lambda row: row[f"{kind}_overlap"])),
                                  (f"PyTorch {peer}", of(lambda row: row[peer]))]:
                print(f"  {text:32}{1e3 * seconds:10.1f} ms")
            for text, value, wanted in [
                    ("hidden / exchanges", hidden, ""), ("the graph lets hide / exchanges", lets, ""),
                    ("hidden / what the graph lets hide", hidden / lets if lets else 0, "wanted: at least 0.90"),
                    ("step / max(rows, exchanges)", of(lambda row: row[f"{kind}_overlap"] / max(alone(row), bare(row))),
                     "wanted: at most 1.15"),
                    (f"step / PyTorch {peer}", of(lambda row: row[f"{kind}_overlap"] / row[peer]), "")]:
                print(f"  {text:36}{value:6.2f}   {wanted}".rstrip(), flush=True)
        for team in [ours, *peers.values()]:
            team.close()


if __name__ == "__main__":
    main()
