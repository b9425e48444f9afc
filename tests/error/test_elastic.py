"""Ranks that die, stop and come back under torchrun's agents: the run goes on with what is left, as if nothing had been, and
somebody says whose fault it was."""

import ctypes
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from safetensors.numpy import load_file

from run_processes import TRAIN, assert_close, free_port, losses, ranks_of, steps_saved, tiny, until, variables_of
from tiny_run import outcome, write_tiny_model

STALL = 4  # seconds; of those that test for one
BOUND = STALL + 15  # within which nothing hangs


@pytest.fixture
def slow(tiny):
    """Steps of some milliseconds and saves that one can hit."""
    write_tiny_model(tiny.path / "model", tiny.path / "model", hidden=64, inner=256, layers=2)
    return tiny


# ---- faults, each of which ends an attempt: of a rank by its number, given the processes by rank


def sigkill(ranks, victim, _):
    os.kill(ranks[victim], signal.SIGKILL)


def two_at_once(ranks, victim, _):
    for rank in [victim, (victim + 1) % len(ranks)]:
        os.kill(ranks[rank], signal.SIGKILL)


def sigstop(ranks, victim, _):
    os.kill(ranks[victim], signal.SIGSTOP)


def exception(ranks, victim, _):
    """It cannot open a file any more, and so not save."""
    resource.prlimit(ranks[victim], resource.RLIMIT_NOFILE, (0, 0))


def full_disk(ranks, victim, _):
    """No file of it gets larger."""
    resource.prlimit(ranks[victim], resource.RLIMIT_FSIZE, (0, 0))


def sigterm(ranks, victim, _):
    os.kill(ranks[victim], signal.SIGTERM)


def unwritable(ranks, victim, _):
    """The directory of the run, until the attempt has ended by it."""
    directory = Path(os.readlink(f"/proc/{ranks[victim]}/cwd")) / "out"
    # Root writes where it has no right to.
    allow = (lambda may: subprocess.run(["chattr", "-i" if may else "+i", directory], check=True)) if os.geteuid() == 0 else \
        (lambda may: directory.chmod(0o755 if may else 0o555))
    allow(False)

    def give_back():
        while all(is_alive(process) for process in ranks.values()):
            time.sleep(0.01)
        allow(True)

    threading.Thread(target=give_back).start()


def blocked(ranks, victim, _):
    """Its connections stay, and nothing comes or goes: what moves their bytes stands still, for longer than the others wait."""
    trace = ctypes.CDLL(None, use_errno=True).ptrace
    seize, interrupt, detach = 0x4206, 0x4207, 17

    def hold():
        held, end = [], time.monotonic() + STALL
        while not held and time.monotonic() < end:  # it waits for messages, most of the time
            for thread in os.listdir(f"/proc/{ranks[victim]}/task"):
                call = Path(f"/proc/{ranks[victim]}/task/{thread}/syscall").read_text().split()[0]
                if call in ("232", "281") and trace(seize, int(thread), None, None) == 0:  # epoll_wait, epoll_pwait
                    trace(interrupt, int(thread), None, None)
                    held.append(int(thread))
        assert held
        time.sleep(STALL + 2)
        for thread in held:
            trace(detach, thread, None, None)

    threading.Thread(target=hold).start()


def agent_gone(ranks, victim, _):
    """And with it the store in which ranks meet."""
    os.kill(int(Path(f"/proc/{ranks[victim]}/stat").read_text().rsplit(")", 1)[1].split()[1]), signal.SIGKILL)


def during_step(tiny, seen, moments):
    time.sleep(moments.uniform(0, 0.01))


def during_save(tiny, seen, moments):
    before = set(tiny.path.glob("out/checkpoint-*.tmp-*"))
    end = time.monotonic() + 20
    while not set(tiny.path.glob("out/checkpoint-*.tmp-*")) - before:
        assert time.monotonic() < end, seen
        time.sleep(0.0005)
    time.sleep(moments.uniform(0, 0.004))


def during_commit(tiny, seen, moments):
    end = time.monotonic() + 20
    while not list(tiny.path.glob("out/checkpoint-*.tmp-*/manifest.json*")):
        assert time.monotonic() < end, seen
        time.sleep(0.0002)


def during_export(tiny, seen, moments):
    """Which dies as well: what it has not finished has no name."""
    shutil.rmtree(tiny.path / "exported", ignore_errors=True)
    export = tiny.start("export", f"out/checkpoint-{steps_saved(tiny.path / 'out')[-1]:06}", "exported")
    time.sleep(moments.uniform(0, 0.08))
    export.kill()
    export.communicate()
    if (tiny.path / "exported").exists():
        assert load_file(tiny.path / "exported/model.safetensors") and (tiny.path / "exported/config.json").exists()


def during_restart(tiny, seen, moments):
    """While ranks come, meet, plan and load."""
    time.sleep(moments.uniform(0, 1))


def is_alive(process):
    try:
        return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def endure(tiny, ranks, faults, how):
    """A run under the agent that `--restarts` starts, with one fault after the other. What it said."""
    # As a person would who finds that the agent is gone; a fault may strike a group that has not begun.
    start = lambda *also: tiny.start(*TRAIN, *how, "--ranks", str(ranks), "--restarts", str(len(faults)), *also)
    launcher = start()
    said, errors, moments, acknowledged = [], [], random.Random(len(faults)), 0
    try:
        for index, (fault, moment, victim) in enumerate(faults):
            begun = None if index else 0  # the step at which this attempt began; what it says comes behind the last one's
            kept = False  # of it
            while moment is during_restart and (len(ranks_of(launcher)) < ranks or set(ranks_of(launcher).values()) & set(before)):
                time.sleep(0.01)
            for line in launcher.stdout if moment is not during_restart else []:
                said.append(line)
                if saved := re.match(r"saved out/checkpoint-(\d+)", line):
                    acknowledged, kept = max(acknowledged, int(saved.group(1))), begun is not None
                if again := re.match(r"(resumed from .*|no checkpoint to resume from: starting) at step (\d+)", line):
                    begun = int(again.group(2))
                if kept and line.startswith("step "):
                    break
            else:
                if moment is not during_restart:
                    raise AssertionError(("".join(said)[-3000:], launcher.stderr.read()[-3000:]))
            processes = ranks_of(launcher)
            assert len(processes) == ranks
            before = processes.values()
            moment(tiny, said, moments)
            fault(processes, victim, moments)
            began = time.monotonic()
            while any(is_alive(process) for process in processes.values()):
                assert time.monotonic() - began < BOUND + 5, (fault, victim, processes, [
                    rank for rank, process in processes.items() if is_alive(process)], "".join(said)[-2000:])
                time.sleep(0.05)
            for step in steps_saved(tiny.path / "out"):
                looked = tiny("inspect", f"out/checkpoint-{step:06}")
                # Those that go on may have replaced it by newer ones meanwhile.
                assert looked.returncode == 0 or step not in steps_saved(tiny.path / "out"), looked.stderr
            assert not acknowledged or max(steps_saved(tiny.path / "out")) >= acknowledged
            if fault is agent_gone:
                left, why = launcher.communicate(timeout=20)
                said.append(left)
                errors.append(why)
                launcher = start("--resume")
        out, err = launcher.communicate(timeout=600)  # what is left of the run; nothing strikes it any more
    finally:
        launcher.kill()
        launcher.communicate()
    said = "".join(said) + out
    assert launcher.returncode == 0, (said[-3000:], err[-3000:])
    return said, "".join(errors) + err


def test_three_faults(slow):
    """A rank in a step, rank 0 in a save, one that cannot save: the bits are those of the run without."""
    how = ["--train.steps=60", "--train.batch_size=8", "--output.save_every=6", "--output.keep_last=3"]
    assert slow(*TRAIN, *how, "--ranks", "4").returncode == 0
    expected = outcome(slow.path / "out")
    shutil.rmtree(slow.path / "out")
    said, err = endure(slow, 4, [(sigkill, during_step, 2), (sigkill, during_save, 0), (exception, during_step, 3)], how)
    assert outcome(slow.path / "out") == expected
    assert len(re.findall(r"^resumed from out/checkpoint-\d+ at step \d+$", said, re.MULTILINE)) == 3, said
    assert re.search(r"^stepc: .*rank \d waited for ranks? [02]\b.*, which (is|are) gone or late: .*; rank \d on \S+, in .*: "
                     r"`stepc blame out` says more$", err, re.MULTILINE), err
    assert re.search(r"^stepc: rank 3: step \d+ could not be saved: .*Too many open files", err, re.MULTILINE), err
    # The last attempt that failed is the one with an error of its own.
    blamed = slow("blame", "out")
    assert blamed.returncode == 0 and re.match(r"rank 3: step \d+ could not be saved: .*Too many open files.*: all were told, in "
                                               r"step \d+, agreeing on the step\n", blamed.stdout), blamed


def test_a_stopped_rank(slow):
    """It ends by itself, and nobody waits for it longer than the agent's own patience."""
    how = ["--train.steps=40", "--train.batch_size=8", "--output.save_every=6", f"--elastic.stall_seconds={STALL}"]
    said, err = endure(slow, 2, [(sigstop, during_step, 1)], how)
    assert "which is gone or late: Timed out" in err and "resumed from" in said, err
    blamed = slow("blame", "out")
    assert blamed.stdout.startswith("rank 1 left nothing: it was killed or stopped, or its machine is gone; rank 0 waited for "
                                    "it in "), blamed
    assert [step for step, key in losses(slow.path / "out") if key == "loss"] == list(range(1, 41))


class Agents:
    """torchrun on each of some machines, which are process groups here."""

    def __init__(self, tiny, *arguments, restarts=4):
        conf = "last_call_timeout=1,keep_alive_interval=1,keep_alive_max_attempt=5,is_host="
        self.path, self.all = tiny.path, []
        self.command = [Path(sys.executable).parent / "torchrun", "--nnodes=1:8", "--nproc-per-node=1", "--rdzv-backend=c10d",
                        f"--max-restarts={restarts}", f"--rdzv-endpoint=127.0.0.1:{free_port()}", "--rdzv-id=run-of-the-tests",
                        "--local-addr=127.0.0.1", "--monitor-interval=0.2"], ["--no-python", tiny.binary, *TRAIN, *arguments]
        self.conf = conf

    def start(self):
        first, second = self.command
        log = open(self.path / f"agent-{len(self.all)}", "w")
        environment = os.environ | {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
        self.all.append(subprocess.Popen([*first, f"--rdzv-conf={self.conf}{int(not self.all)}", *second], cwd=self.path,
                                         stdout=log, stderr=log, env=environment))

    def said(self):
        return "".join((self.path / f"agent-{index}").read_text() for index in range(len(self.all)))

    def until(self, pattern, count=1):
        end = time.monotonic() + 60
        while len(re.findall(pattern, self.said(), re.MULTILINE)) < count:
            assert time.monotonic() < end and any(agent.poll() is None for agent in self.all), (pattern, self.said())
            time.sleep(0.05)

    def lose(self, index):
        """The machine: the agent and what it has started."""
        for process in ranks_of(self.all[index]).values():
            os.kill(process, signal.SIGKILL)
        self.all[index].kill()
        self.all[index].wait()

    def end(self):
        for agent in self.all:
            if agent.poll() is None:
                for process in ranks_of(agent).values():
                    os.kill(process, signal.SIGKILL)
            agent.kill()
            agent.wait()


def test_ranks_come_and_go(slow):
    """One machine, two, and the first's share again: the mesh follows, and the loss is the undisturbed one."""
    how = ["--train.steps=800", "--train.batch_size=60", "--output.save_every=20", "--parallel.dp_shard=-1"]
    assert slow(*TRAIN, *how, "--parallel.ranks=1", "--output.dir=one").returncode == 0
    agents = Agents(slow, *how)
    try:
        agents.start()
        agents.until("^step 30/")
        agents.start()
        agents.until(r"^resumed from out/checkpoint-\d+ at step \d+$")
        grown = int(re.search(r"^resumed from .* at step (\d+)$", agents.said(), re.MULTILINE).group(1))
        assert f"stopped by SIGTERM: step {grown} is saved" in agents.said(), "nothing was lost when it came"
        agents.until(f"^step {grown + 20}/")
        agents.lose(1)
        agents.until(r"^resumed from out/checkpoint-\d+ at step \d+$", count=2)
        assert agents.all[0].wait(timeout=240) == 0, agents.said()
    finally:
        agents.end()
    assert re.search(r"^parallel\.|, which is gone or late: ", agents.said(), re.MULTILINE)
    expected = losses(slow.path / "one")
    assert_close(losses(slow.path / "out"), expected, 1e-4)
    assert sum(key == "loss" for _, key in expected) == 800


def test_a_pin_that_the_world_cannot_hold(tiny):
    """In one line, of the rank that is left."""
    agents = Agents(tiny, "--train.steps=100000", "--output.save_every=20", "--parallel.tp=2", restarts=1)
    try:
        agents.start()
        agents.start()
        agents.until("^step 20/")
        agents.lose(1)
        assert agents.all[0].wait(timeout=60) == 1
    finally:
        agents.end()
    assert "stepc: parallel.tp = 2 takes 2 ranks, and torchrun started 1: the nearest mesh is none, and parallel.dp_shard = " \
        "-1 takes what the others leave\n" in agents.said(), agents.said()


def flip_a_bit(process, data):
    """In the process's memory, wherever it has these bytes: not in files that it has mapped."""
    count = 0
    os.kill(process, signal.SIGSTOP)  # so that the process finds the first change when there are no more to make
    with open(f"/proc/{process}/maps") as maps, open(f"/proc/{process}/mem", "r+b", buffering=0) as memory:
        for line in maps:
            place, rights, _, _, inode, *_ = line.split()
            if not rights.startswith("rw") or inode != "0":
                continue
            begin, end = (int(each, 16) for each in place.split("-"))
            try:
                memory.seek(begin)
                held = memory.read(end - begin)
            except OSError:
                continue
            at = held.find(data)
            while at >= 0:
                memory.seek(begin + at + 40)
                memory.write(bytes([held[at + 40] ^ 1]))
                count += 1
                at = held.find(data, at + 1)
    os.kill(process, signal.SIGCONT)
    return count


def test_memory_that_goes_bad(tiny):
    """Of a frozen matrix, which nothing writes again: of three replicas the odd one is named, before the next save."""
    how = ["--lora.rank=2", "--parallel.dp_replicate=3", "--train.batch_size=3", "--train.steps=100000",
           "--output.save_every=20", "--elastic.check_every=7", "--optim.schedule=constant"]
    launcher = tiny.start(*TRAIN, *how, "--ranks", "3")
    until(launcher, "step 25/")
    matrix = load_file(tiny.path / "model/model.safetensors")["model.layers.0.mlp.gate_proj.weight"]
    assert flip_a_bit(ranks_of(launcher)[1], matrix.tobytes()) >= 1
    out, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 1, err
    found = re.search(r"stepc: step (\d+): parameter '\S*gate_proj\S*': rank 1 has other values than ranks 0, 2, which agree: a "
                      r"machine has computed or kept something wrong; stopped before saving; the checkpoint of step (\d+) is "
                      r"good\n", err)
    assert found and int(found.group(2)) <= int(found.group(1)) == max(losses(tiny.path / "out"))[0], err
    assert int(found.group(1)) % 7 == 0 or int(found.group(1)) % 20 == 0
    assert steps_saved(tiny.path / "out")[-1] == int(found.group(2))


def test_replicas_that_agree(tiny):
    """Of a mesh in which each kind of tensor is held by several."""
    result = tiny(*TRAIN, "--ranks", "4", "--parallel.dp_replicate=2", "--parallel.tp=2", "--elastic.check_every=1",
                  "--output.save_every=2")
    assert (result.returncode, result.stderr) == (0, ""), result


def test_blame_of_a_killed_rank(tiny):
    launcher = tiny.start(*TRAIN, "--ranks", "3", "--train.steps=100000", "--train.batch_size=6")
    until(launcher, "step 20/")
    os.kill(ranks_of(launcher)[2], signal.SIGKILL)
    launcher.communicate(timeout=30)
    blamed = tiny("blame", "out")
    assert re.match(r"rank 2 left nothing: it was killed or stopped, or its machine is gone; ranks? [01].* waited for it in ",
                    blamed.stdout), blamed
    flight = json.loads((tiny.path / "out/logs/rank-0.flight.json").read_text())
    assert len(flight["last"]) == 1000 and flight["ranks"] == 3 and flight["end"] == "lost"
    assert any(place[0] == "all_gather" and place[3] == "dp_shard" for place in flight["places"]), flight["places"]


def test_a_slow_rank(slow):
    """It runs a quarter of the time."""
    write_tiny_model(slow.path / "model", slow.path / "model", hidden=256, inner=1024, layers=4)
    launcher = slow.start(*TRAIN, "--ranks", "2", "--train.steps=100000", "--train.batch_size=8", "--output.save_every=0")
    until(launcher, "step 5/")
    process = ranks_of(launcher)[1]
    found = threading.Event()

    def slow_down():
        while not found.wait(0.01):
            os.kill(process, signal.SIGSTOP)
            time.sleep(0.03)
            os.kill(process, signal.SIGCONT)

    slowing, patience = threading.Thread(target=slow_down), threading.Timer(60, launcher.kill)
    slowing.start()
    patience.start()
    try:
        until(launcher, "slow: rank 1 on ")
    finally:
        found.set()
        slowing.join()
        patience.cancel()
        launcher.terminate()
        launcher.communicate(timeout=40)


def test_an_agent_that_is_killed(tiny):
    """Its ranks do not go on without it: they save and end, and the run that is started in its stead has the directory."""
    launcher = tiny.start(*TRAIN, "--ranks", "2", "--restarts", "1", "--train.steps=100000", "--output.save_every=0")
    until(launcher, "step 5/")
    ranks = ranks_of(launcher)
    launcher.kill()
    out, _ = launcher.communicate(timeout=30)
    end = time.monotonic() + 10  # a process that ends closes its files before the system forgets it
    while any(is_alive(process) for process in ranks.values()):
        assert time.monotonic() < end, ranks
        time.sleep(0.01)
    assert re.search(r"^stopped by SIGTERM: step \d+ is saved, continue with --resume$", out, re.MULTILINE), out


def test_an_agent_without_a_store_that_is_killed(tiny):
    """As those on several machines are, by docs/elastic.md."""
    agents = Agents(tiny, "--train.steps=100000", "--output.save_every=0")
    try:
        agents.start()
        agents.until("^step 5/")
        (rank,) = ranks_of(agents.all[0]).values()
        agents.all[0].kill()
        end = time.monotonic() + 10
        while is_alive(rank):
            assert time.monotonic() < end, agents.said()
            time.sleep(0.01)
    finally:
        agents.end()
    assert re.search(r"^stopped by SIGTERM: step \d+ is saved, continue with --resume$", agents.said(), re.MULTILINE), agents.said()


def test_an_agent_that_is_gone_before_its_ranks_begin(tiny):
    """Nobody tells them of it: they see it themselves, or else at its store, which nobody keeps any more. At once."""
    port = free_port()
    of_agent = variables_of(1, 2, port) | {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    again = "start the run again, from what it has saved\n"
    for agent, said in (("1", f"stepc: the agent that started this rank, process 1, is gone: {again}"),
                        (str(os.getpid()), f"stepc: nobody listens at 127.0.0.1:{port} any more, where the launcher's agent did: "
                                           f"it is gone; {again}")):
        rank = subprocess.run([tiny.binary, *TRAIN], cwd=tiny.path, text=True, capture_output=True, timeout=30,
                              env=os.environ | of_agent | {"STEPC_AGENT": agent})
        assert rank.returncode != 0 and rank.stderr == said, rank.stderr
    assert not (tiny.path / "out").exists()


@pytest.mark.parametrize("start", [None, "step 5/"])
def test_nobody_reads_any_more(tiny, start):
    """What rank 0 says: it cannot, saves and ends as the others do, whenever that was."""
    port = free_port()
    ranks = [subprocess.Popen([tiny.binary, *TRAIN, "--train.steps=100000", "--output.save_every=0"], cwd=tiny.path, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ | variables_of(rank, 2, port))
             for rank in range(2)]
    if start:
        until(ranks[0], start)
    ranks[0].stdout.close()
    ranks[0].stderr.close()
    ranks[0].wait(timeout=60)
    _, err = ranks[1].communicate(timeout=60)
    assert [rank.returncode for rank in ranks] == [128 + signal.SIGPIPE] * 2, err
    assert err == "" and bool(steps_saved(tiny.path / "out")) == bool(start), "before the first step there is nothing to save"


def test_restarts_are_of_ranks(tiny):
    result = tiny(*TRAIN, "--restarts", "2")
    assert (result.returncode, result.stderr) == (
        2, "stepc: --restarts 2 is of ranks: give --ranks as well, at least 2\n")
    environment = os.environ | {"STEPC_PYTHON": "/bin/false"}
    result = tiny(*TRAIN, "--ranks", "2", "--restarts", "2", env=environment)
    assert result.returncode == 2 and result.stderr.startswith(
        "stepc: --restarts starts ranks by torchrun, and no Python here has torch (/bin/false): "), result


@pytest.mark.long
@pytest.mark.parametrize("before, after", [(8, 8), (8, 7), (8, 4), (8, 1), (2, 8)])
def test_one_is_killed_and_others_go_on(slow, memory, monkeypatch, before, after):
    """On as many, fewer and more: from memory, with the losses of the undisturbed run, on as many its bits."""
    monkeypatch.setenv("STEPC_SNAPSHOT_DIR", str(memory))
    how = ["--train.steps=40", "--train.batch_size=56", "--output.save_every=6", "--elastic.snapshot_every=4"]
    assert slow(*TRAIN, *how, "--ranks", str(before)).returncode == 0
    expected, bits = losses(slow.path / "out"), outcome(slow.path / "out")
    shutil.rmtree(slow.path / "out")
    launcher = slow.start(*TRAIN, *how, "--ranks", str(before))
    until(launcher, "step 18/")
    os.kill(ranks_of(launcher)[random.Random(after).randrange(before)], signal.SIGKILL)
    launcher.communicate(timeout=60)
    result = slow(*TRAIN, *how, "--ranks", str(after), "--resume")
    assert result.returncode == 0, result
    assert re.search(r"^resumed from (memory|out/.*) at step \d+", result.stdout, re.MULTILINE), result
    assert_close(losses(slow.path / "out"), expected, 1e-4)
    assert after != before or outcome(slow.path / "out") == bits


@pytest.mark.long
def test_a_soak(slow, memory, request, monkeypatch):
    """Any fault at any moment (--faults, --fault-ranks), from checkpoints and from memory, whatever is newer."""
    count, ranks = request.config.getoption("--faults"), request.config.getoption("--fault-ranks")
    monkeypatch.setenv("STEPC_SNAPSHOT_DIR", str(memory))
    mesh = [f"--parallel.{axis}" for axis in filter(None, request.config.getoption("--fault-mesh").split(","))]
    if any("pp=" in axis for axis in mesh):
        mesh.append("--train.micro_batches=2")
    how = [*mesh, f"--train.steps={16 * (count + 1)}", "--train.batch_size=8", "--output.save_every=6", "--output.keep_last=3",
           "--elastic.snapshot_every=4", f"--elastic.stall_seconds={STALL}"]
    assert slow(*TRAIN, *how, "--ranks", str(ranks)).returncode == 0
    expected = outcome(slow.path / "out")
    shutil.rmtree(slow.path / "out")
    draw = random.Random(11)
    all_faults = [sigkill, sigkill, two_at_once, sigstop, sigterm, exception, full_disk, unwritable, blocked, agent_gone]
    moments = [during_step, during_save, during_commit, during_export, during_restart]
    faults = []
    for index in range(count):
        fault = all_faults[index] if index < len(all_faults) else draw.choice(all_faults)  # each once, then any
        # What holds threads or takes the directory needs a run that is at it; and a new agent has no attempt before it.
        steady = index == 0 or fault in (unwritable, blocked) or faults[-1][0] is agent_gone
        faults.append((fault, draw.choice(moments[:4] if steady else moments), draw.randrange(ranks)))
    print(*(f"{fault.__name__} {moment.__name__} {victim}" for fault, moment, victim in faults), sep="\n")
    began = time.monotonic()
    said, _ = endure(slow, ranks, faults, how)
    print(f"{count} faults in {time.monotonic() - began:.0f} s; resumed {len(re.findall('^resumed from memory', said, re.M))} "
          f"times from memory, {len(re.findall('^resumed from out', said, re.M))} from a checkpoint")
    assert not list(memory.iterdir())
    assert outcome(slow.path / "out") == expected
