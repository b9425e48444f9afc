"""Programs of a person's own whose ranks are killed, stopped, fail, or lose their agent: the others end in time, say whom they
waited for in what, and leave what they did last for `stepc blame`."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from on_ranks import PACKAGE

STALL = 3  # seconds
BOUND = STALL + 15  # within which nothing hangs

BEGINNING = f"""
    import os, sys, time
    sys.path.insert(0, sys.argv[1])
    import torch
    import stepc

    rank = int(os.environ["RANK"])
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    elastic = {{"stall_seconds": {STALL}, "output_dir": "out"}}
    x = torch.randn(4, 8)

    def run(step, behind=None):
        for i in range(1_000_000):
            step(x)
            if i == 20:
                print("running", flush=True)
            if behind:
                behind(i)
"""
WHOLE_STEP = BEGINNING + """
    def train_step(x):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    step = stepc.accelerate(train_step, config=stepc.Config(parallel={"dp_shard": -1}, elastic=elastic))
"""
LOOP = BEGINNING + """
    model, optimizer = stepc.accelerate(model, optimizer, config=stepc.Config(parallel="ddp", elastic=elastic))

    def step(x):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
AGENT = """
    import subprocess, sys, time
    from torch.distributed import TCPStore
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none",
                 "TORCHELASTIC_USE_AGENT_STORE": "True"}
    import os
    ranks = [subprocess.Popen([sys.executable, "program.py", sys.argv[1]], env=os.environ | variables | {"RANK": str(rank)},
                              stdout=subprocess.PIPE, text=True) for rank in range(2)]
    ranks[0].stdout.readline()
    print(*(rank.pid for rank in ranks), flush=True)
    time.sleep(600)
"""


class Programs:
    """Two ranks of one program, as torchrun would start them."""

    def __init__(self, build_dir, path):
        self.build_dir, self.path, self.ranks = build_dir, path, []

    def write(self, text, name="program.py"):
        (self.path / name).write_text(textwrap.dedent(text))

    def start(self, text, **variables):
        self.write(text)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", **variables}
        self.ranks = [subprocess.Popen([sys.executable, "program.py", PACKAGE], cwd=self.path, text=True,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                       env=os.environ | common | {"RANK": str(rank)}) for rank in range(2)]
        return self.ranks

    def blame(self):
        result = subprocess.run([self.build_dir / "src/stepc", "blame", "out"], cwd=self.path, capture_output=True, text=True)
        assert result.returncode == 0, result
        return result.stdout


@pytest.fixture
def programs(build_dir, tmp_path):
    made = Programs(build_dir.resolve(), tmp_path)
    yield made
    for rank in made.ranks:
        rank.kill()
        rank.communicate()


def ends(rank, begins=0):
    """What it says, within the bound and the seconds that it takes to begin."""
    said = rank.communicate(timeout=BOUND + begins)[1]
    assert rank.returncode == 1, said
    return said.rstrip().splitlines()[-1]


@pytest.mark.parametrize("what, directory", [(signal.SIGKILL, "of the first save"), (signal.SIGSTOP, "chosen")])
def test_peer_that_is_gone(programs, what, directory):
    program = WHOLE_STEP
    if directory != "chosen":
        program = program.replace(', "output_dir": "out"', "") + "    step(x)\n    step.save('out')\n"
    first, second = programs.start(program + "    run(step)\n")
    assert first.stdout.readline() == "running\n", first.communicate()
    os.kill(second.pid, what)
    said = ends(first)
    assert re.match(rf"stepc\S*\.LostRank: [\w-]+ of ranks 0, 1: rank 0 waited for rank 1, which is gone or late: .*; rank 0 on "
                    rf"{socket.gethostname()}, in (step \d+|a call of the step): `stepc blame \S*out` says more$", said), said
    assert ("Timed out" in said) == (what == signal.SIGSTOP), said
    blamed = programs.blame()
    assert re.match(r"rank 1 left nothing: it was killed or stopped, or its machine is gone; rank 0 waited for it in [\w-]+ of "
                    r"ranks 0, 1, at step \d+, (instruction \d+ \(\w+ over dp_shard\)|a call of the step)", blamed), blamed
    flight = json.loads((programs.path / "out/logs/rank-0.flight.json").read_text())
    assert flight["end"] == "lost" and flight["missing"] == [1]
    assert len(flight["last"]) > 100 and any(place[0] == "all_gather" and place[3] == "dp_shard" for place in flight["places"])


def test_loop_whose_peer_is_gone(programs):
    first, second = programs.start(LOOP + "    run(step)\n")
    assert first.stdout.readline() == "running\n", first.communicate()
    second.kill()
    said = ends(first)
    assert re.match(r"stepc\S*\.LostRank: [\w-]+ of ranks 0, 1: rank 0 waited for rank 1, .*; rank 0 on \S+, in averaging "
                    r"gradients: `stepc blame ", said), said
    assert "; rank 0 waited for it in " in programs.blame()


def test_exception_of_a_peer(programs):
    """Between two calls: the other one hears of it, and who reads both files of whose it was."""
    first, second = programs.start(WHOLE_STEP + """
    def fails(i):
        if rank == 1 and i == 30:
            raise ValueError("a broken row")
    run(step, fails)
""")
    assert ends(first, begins=60) == "stepc._C.RankFailed: rank 1: ValueError: a broken row"
    assert ends(second) == "ValueError: a broken row"
    assert programs.blame().startswith(f"rank 1 on {socket.gethostname()} failed in step 31, the program's own code: "
                                       "ValueError: a broken row\n")


def test_agent_that_is_killed(programs):
    """The system ends its ranks."""
    programs.write(WHOLE_STEP + "    run(step)\n")
    programs.write(AGENT, "agent.py")
    agent = subprocess.Popen([sys.executable, "agent.py", PACKAGE], cwd=programs.path, text=True,
                             stdout=subprocess.PIPE)
    programs.ranks = [agent]
    ranks = [int(one) for one in agent.stdout.readline().split()]
    assert len(ranks) == 2
    agent.kill()
    end = time.monotonic() + BOUND
    while any(Path(f"/proc/{rank}").exists() and "Z" not in Path(f"/proc/{rank}/stat").read_text().rsplit(")", 1)[1].split()[0]
              for rank in ranks):
        assert time.monotonic() < end, ranks
        time.sleep(0.05)


def test_agent_that_is_gone_already(programs):
    """It is seen by its number, or at its store, which nobody keeps: at once."""
    of_agent = {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    first, second = programs.start(WHOLE_STEP, STEPC_AGENT="1", **of_agent)
    for rank in first, second:
        assert ends(rank, begins=60) == ("stepc._C.UserError: the agent that started this rank, process 1, is gone: start the run again, from "
                              "what it has saved")
    first, second = programs.start(WHOLE_STEP, **of_agent)
    for rank in first, second:
        assert re.match(r"stepc\S*\.UserError: nobody listens at 127\.0\.0\.1:\d+ any more, where the launcher's agent did: it is "
                        r"gone; start the run again, from what it has saved$", said := ends(rank, begins=60)), said
