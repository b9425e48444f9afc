#!/usr/bin/env python3
"""From the kill of a rank to the next step of the run, by where its state comes from, with its parts.

    benchmarks/restart_benchmark.py [--preset NAME] [--ranks N] [--rounds N] [--seq N] [--batch N] [--json FILE]

Ranks of this machine as two machines of their own would be: each half has a directory of memory for snapshots. A round kills
all of them, as a launcher does with those that are left, and starts them again: with their own memory; with that of one half
gone, which comes from the other's; with no memory, from the newest checkpoint; and anew, with no state to read. The kernels
are compiled by then; `cold` is the first start, with an empty cache of kernels. What a launcher takes to see the fault and to start processes
is not in it (docs/elastic.md: a second, and torchrun's own start). With --json FILE the medians go there, for benchmarks/goodput.py.
"""
import argparse
import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
STEPC = ROOT / "build" / "release" / "src" / "stepc"
CONFIG = """[model]
path = "model"
[data]
train = ["text.txt"]
eval_fraction = 0
seq_len = {seq}
[train]
steps = 1000000
batch_size = {batch}
threads = 1
[elastic]
snapshot_every = 2
[output]
dir = "out"
log_every = 1
save_every = 3
keep_last = 1
sample_tokens = 0
"""


class Run:
    """Its ranks end with the block that it is the context of. `memory`: the directory of both halves' memory."""

    def __init__(self, folder, memory, ranks):
        self.folder, self.ranks, self.processes = folder, ranks, []
        self.memories = [memory / str(half) for half in range(2)]
        for each in self.memories:
            each.mkdir()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.kill()

    def start(self, *how):
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = str(taken.getsockname()[1])
        self.began = time.monotonic()
        self.processes = []
        for rank in range(self.ranks):
            place = {"RANK": rank, "WORLD_SIZE": self.ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
                     "STEPC_SECRET": "of this benchmark", "OMP_NUM_THREADS": 1, "XDG_CACHE_HOME": self.folder / "cache",
                     "STEPC_SNAPSHOT_DIR": self.memories[2 * rank // self.ranks]}
            self.processes.append(subprocess.Popen([STEPC, "train", "run.toml", *how], cwd=self.folder, text=True,
                                                   stdout=subprocess.PIPE if rank == 0 else subprocess.DEVNULL,
                                                   env=os.environ | {name: str(value) for name, value in place.items()}))

    def until(self, pattern):
        """Seconds since the start, and what was said."""
        said = []
        for line in self.processes[0].stdout:
            said.append(line)
            if found := re.match(pattern, line):
                return time.monotonic() - self.began, found, said
        raise SystemExit("restart_benchmark: the run ended: " + "".join(said)[-2000:])

    def has_newer_snapshot(self):
        """Whether the parts of all ranks are in memory, newer than the newest checkpoint."""
        parts = {}  # by rank, the step of its newest part
        for manifest in (path for each in self.memories for path in each.glob("**/rank-*/manifest.json")):
            try:
                step = json.loads(manifest.read_text())["step"]
            except (OSError, ValueError):
                continue  # one that is just being replaced
            parts[manifest.parent.name] = max(step, parts.get(manifest.parent.name, -1))
        saved = max(int(each.name.rpartition("-")[2]) for each in (self.folder / "out").glob("checkpoint-[0-9]*")
                    if ".tmp-" not in each.name)
        return len(parts) == self.ranks and min(parts.values()) > saved

    def kill(self):
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()
            if process.stdout:
                process.stdout.close()


def wipe(folder):
    shutil.rmtree(folder)
    folder.mkdir()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", default="llama-2m")
    for name, default in [("ranks", 2), ("rounds", 3), ("seq", 64), ("batch", 2)]:
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--json", type=pathlib.Path)
    arguments = parser.parse_args()
    place = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # through the blocks below, which end the ranks
    with tempfile.TemporaryDirectory(prefix="stepc-restart-", dir=place) as memory, \
            tempfile.TemporaryDirectory(prefix="stepc-restart-") as name, \
            Run(pathlib.Path(name), pathlib.Path(memory), arguments.ranks) as run:
        folder = run.folder
        subprocess.run([STEPC, "init", "model", "--preset", arguments.preset], cwd=folder, check=True, capture_output=True)
        (folder / "text.txt").write_text(" ".join(random.Random(0).choices("light and the deep was upon".split(), k=40000)))
        (folder / "run.toml").write_text(CONFIG.format(seq=arguments.seq, batch=arguments.batch))
        run.start()
        cold, _, _ = run.until("step 1/")
        rows = {}
        sources = {"own memory": lambda: None, "a peer's memory": lambda: wipe(run.memories[1]),
                   "disk": lambda: [wipe(each) for each in run.memories]}
        for _ in range(arguments.rounds):
            for source, lose in sources.items():
                run.until("saved .*")
                while not run.has_newer_snapshot():
                    run.until("step .*")
                run.kill()
                lose()
                run.start("--resume")
                resumed, found, _ = run.until("resumed from (memory|out).*")
                assert (found.group(1) == "memory") == (source != "disk"), found.group(0)
                stepped, _, _ = run.until("step .*")
                rows.setdefault(source, []).append((resumed, stepped))
        run.kill()
        saved = max(each for each in (folder / "out").glob("checkpoint-*") if ".tmp-" not in each.name)
        state_bytes = sum(file.stat().st_size for file in saved.iterdir())
        shutil.rmtree(folder / "out")
        for each in run.memories:
            wipe(each)
        for _ in range(arguments.rounds):
            run.start()
            stepped, _, _ = run.until("step 1/")
            rows.setdefault("without state", []).append((stepped, stepped))
            run.kill()
            shutil.rmtree(folder / "out")
    print(f"{arguments.preset} on {arguments.ranks} ranks of one thread, seconds from the start of the processes (median of "
          f"{arguments.rounds})")
    print(f"  {'state from':<18} {'loaded':>8} {'next step':>10} {'of one without':>15}")
    print(f"  {state_bytes / 1e6:.1f} MB of state")
    without = statistics.median(row[1] for row in rows["without state"])
    if arguments.json:
        arguments.json.write_text(json.dumps({"restart": {
            "preset": arguments.preset, "ranks": arguments.ranks, "state_bytes": state_bytes,
            "next_step": {source: statistics.median(row[1] for row in found) for source, found in rows.items()}}}) + "\n")
    for source, found in rows.items():
        loaded, stepped = (statistics.median(row[at] for row in found) for at in range(2))
        shown = f"{loaded:8.2f}" if source != "without state" else f"{'-':>8}"
        print(f"  {source:<18} {shown} {stepped:10.2f} {stepped / without:14.2f}x")
    print(f"  {'cold':<18} {'-':>8} {cold:10.2f} {cold / without:14.2f}x")


if __name__ == "__main__":
    main()
