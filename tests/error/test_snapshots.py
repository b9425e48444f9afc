"""Snapshots in memory: runs that go on from them, on the same machine, from another one's, on another mesh."""

import fcntl
import os
import random
import re
import shutil
import signal
import struct
import subprocess
import termios
import time

import pytest

from run_processes import TRAIN, assert_close, free_port, losses, ranks_of, tiny, until, variables_of
from tiny_run import outcome, write_tiny_model

HOW = ["--train.steps=60", "--train.batch_size=8", "--elastic.snapshot_every=3", "--output.save_every=25"]


@pytest.fixture
def slow(tiny, memory, monkeypatch):
    """Steps of some milliseconds, and a machine's memory for snapshots of its own."""
    write_tiny_model(tiny.path / "model", tiny.path / "model", hidden=64, inner=256, layers=2)
    monkeypatch.setenv("STEPC_SNAPSHOT_DIR", str(memory))
    return tiny


def left_in(memory):
    return sorted(str(file.relative_to(memory)) for file in memory.rglob("*"))


def test_a_run_goes_on_from_memory(slow, memory):
    """Newer than the checkpoint, with the bits of the run that nobody disturbed; and what it took is given back."""
    assert slow(*TRAIN, *HOW, "--ranks", "4").returncode == 0
    assert left_in(memory) == []
    expected = outcome(slow.path / "out")
    shutil.rmtree(slow.path / "out")
    launcher = slow.start(*TRAIN, *HOW, "--ranks", "4", "--restarts", "1")
    until(launcher, "step 41/")
    os.kill(ranks_of(launcher)[2], signal.SIGKILL)
    out, err = launcher.communicate(timeout=60)
    assert launcher.returncode == 0, err
    resumed = re.search(r"^resumed from memory at step (\d+): all of 4 parts were here$", out, re.MULTILINE)
    assert resumed and int(resumed.group(1)) >= 39 and int(resumed.group(1)) % 3 == 0, out
    assert outcome(slow.path / "out") == expected
    assert left_in(memory) == []
    assert re.search(r"^  snapshots +\d+, .* of this rank each; training stood still for .* ms each, .* ms more were beside it",
                     out, re.MULTILINE), out
    assert re.search(r"^a run takes .*, copy for saves .*, snapshots [\d.]+ KiB, the program itself ", out, re.MULTILINE), out


def test_one_process_and_another_mesh(slow, memory):
    """By slices, as from a checkpoint; and a run that begins anew takes none of them."""
    whole = slow(*TRAIN, *HOW, "--output.dir=whole", "--parallel.ranks=1")
    assert whole.returncode == 0, whole
    launcher = slow.start(*TRAIN, *HOW, "--ranks", "2")
    until(launcher, "step 41/")
    for process in ranks_of(launcher).values():
        os.kill(process, signal.SIGKILL)
    launcher.communicate(timeout=60)
    alone = slow(*TRAIN, *HOW, "--parallel.ranks=1", "--resume")
    assert alone.returncode == 0, alone
    assert re.search(r"^resumed from memory at step (39|4\d): all of 2 parts were here$", alone.stdout, re.MULTILINE), alone
    assert_close(losses(slow.path / "out"), losses(slow.path / "whole"), 1e-4)

    killed = slow.start(*TRAIN, *HOW, "--output.dir=whole", "--train.steps=100000", "--resume")
    until(killed, "step 66/")
    killed.kill()
    killed.communicate()
    shutil.rmtree(slow.path / "whole")
    again = slow(*TRAIN, "--train.steps=2", "--elastic.snapshot_every=1", "--output.dir=whole", "--resume")
    assert again.returncode == 0 and "resumed" not in again.stdout, again
    assert re.search(r"is a snapshot of another run \([0-9a-f]{16}, this one is [0-9a-f]{16}\): removed", again.stderr +
                     again.stdout), again
    assert left_in(memory) == []


def test_a_machine_that_is_gone(slow, memory):
    """Its ranks get what they had from the copies on the other one."""
    memories = [memory / "one", memory / "other"]
    for each in memories:
        each.mkdir()

    def start(*how):
        port = free_port()
        return [subprocess.Popen([slow.binary, *TRAIN, *HOW, *how], cwd=slow.path, text=True, stdout=subprocess.PIPE,
                                 stderr=subprocess.PIPE, env=os.environ | variables_of(rank, 2, port) |
                                 {"STEPC_SNAPSHOT_DIR": str(memories[rank]), "STEPC_SECRET": "of the two of them"})
                for rank in range(2)]

    ranks = start()
    until(ranks[0], "step 41/")
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.communicate()
    shutil.rmtree(memories[1])
    memories[1].mkdir()
    ranks = start("--resume")
    said = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert re.search(r"^resumed from memory at step (39|4\d): all of 2 parts were here$", said[0][0], re.MULTILINE), said
    log = (slow.path / "out/logs/rank-1.log").read_text()
    assert re.search(r"^resumed from memory at step (39|4\d): 2 of 2 parts came from other machines$", log, re.MULTILINE), log
    assert sorted(step for step, key in losses(slow.path / "out") if key == "loss") == list(range(1, 61))
    assert [left_in(memory) for memory in memories] == [[], []]


@pytest.mark.parametrize("victim", [0, 1])
def test_survivors_wait_for_another_in_the_place_of_one(slow, memory, victim):
    """They keep their process, and no checkpoint is read."""
    how = [*HOW, "--output.save_every=0", "--elastic.rejoin_seconds=40"]
    port = free_port()

    def start(rank):
        return subprocess.Popen([slow.binary, *TRAIN, *how], cwd=slow.path, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env=os.environ | variables_of(rank, 2, port))

    ranks = [start(rank) for rank in range(2)]
    assert [rank.communicate(timeout=60) and rank.returncode for rank in ranks] == [0, 0]
    expected = outcome(slow.path / "out")
    shutil.rmtree(slow.path / "out")
    ranks = [start(rank) for rank in range(2)]
    until(ranks[0], "step 41/")
    ranks[victim].kill()
    ranks[victim].communicate()
    ranks[victim] = start(victim)
    said = [rank.communicate(timeout=60) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert re.search(r"^resumed from memory at step (39|4\d): all of 2 parts were here$", said[0][0], re.MULTILINE), said
    log = (slow.path / "out/logs/rank-1.log").read_text()
    assert "which is gone or late: " in log + said[1 - victim][1] and "; waiting 40s for a rank in its place" in \
        log + said[0][0] + said[1 - victim][1], (said, log)
    assert outcome(slow.path / "out") == expected
    assert left_in(memory) == []


def waiting_in(pipe):
    """The bytes that were written to a pipe and that nobody has read."""
    return struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]


REPLICAS = ["--train.steps=60", "--train.batch_size=8", "--parallel.dp_replicate=2", "--parallel.dp_shard=-1", "--output.save_every=0",
            "--output.eval_every=15", "--data.eval_fraction=0.05", "--elastic.rejoin_seconds=40", "--output.log_every=1"]


def replace_one(tiny, ranks, victim, wait):
    """Ranks that are started by hand, of which one is killed and started again. What rank 0 and the victim's log said."""
    port = free_port()

    def start(rank):
        return subprocess.Popen([tiny.binary, *TRAIN, *REPLICAS], cwd=tiny.path, text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.PIPE, env=os.environ | variables_of(rank, ranks, port))

    all_ranks = [start(rank) for rank in range(ranks)]
    if victim is not None:
        wait(all_ranks[0])
        all_ranks[victim].kill()
        all_ranks[victim].communicate()
        all_ranks[victim] = start(victim)
    said = [rank.communicate(timeout=60) for rank in all_ranks]
    assert [rank.returncode for rank in all_ranks] == [0] * ranks, said
    return said[0][0]


def test_a_rank_in_the_place_of_a_lost_one_takes_from_its_replica(slow):
    """Survivors keep process and tensors; nothing is read, for nothing is saved: no checkpoint, no snapshot."""
    replace_one(slow, 2, None, None)
    expected = outcome(slow.path / "out")

    def full(first):
        """Rank 0 waits for somebody to read what it says, and all the others for it, behind the same step."""
        fcntl.fcntl(first.stdout, fcntl.F_SETPIPE_SZ, 4096)
        until(first, "step 5/")
        unread, before = waiting_in(first.stdout), -1
        while unread < 4096 - 200 or unread != before:  # no line of a step has 200 bytes
            time.sleep(1)
            unread, before = waiting_in(first.stdout), unread

    for victim in (0, 1):
        shutil.rmtree(slow.path / "out")
        said = replace_one(slow, 2, victim, full)
        said += (slow.path / "out/logs/rank-1.log").read_text()
        assert re.search(r"^resumed from what ranks have kept at step \d+: 1 of 2 had all of theirs, the others took it from "
                         r"them$", said, re.MULTILINE), said
        assert outcome(slow.path / "out") == expected


@pytest.mark.long
def test_ranks_replaced_at_any_moment(slow, request):
    """--faults: with the tensors of those that are left, or from the beginning where these are of no step."""
    replace_one(slow, 4, None, None)
    expected = outcome(slow.path / "out")
    draw, kept = random.Random(5), 0

    def at_any(first):
        until(first, f"step {draw.randrange(5, 50)}/")
        time.sleep(draw.uniform(0, 0.05))

    for _ in range(request.config.getoption("--faults")):
        shutil.rmtree(slow.path / "out")
        replace_one(slow, 4, draw.randrange(4), at_any)
        kept += "resumed from what ranks have kept" in (slow.path / "out/logs/rank-1.log").read_text()
        assert outcome(slow.path / "out") == expected
    print(f"{kept} of {request.config.getoption('--faults')} from what ranks have kept")


def test_no_place_for_snapshots(slow, memory, monkeypatch):
    """In one line, before the first step."""
    monkeypatch.setenv("STEPC_SNAPSHOT_DIR", str(slow.path / "none"))
    result = slow(*TRAIN, *HOW)
    assert (result.returncode, result.stderr) == (
        2, f"stepc: snapshots: there is no directory {slow.path}/none: give one in memory as STEPC_SNAPSHOT_DIR\n"), result
    others = memory / f"stepc-{os.geteuid()}"
    monkeypatch.setenv("STEPC_SNAPSHOT_DIR", str(memory))
    others.mkdir()
    others.chmod(0o755)
    result = slow(*TRAIN, *HOW)
    assert result.returncode == 2 and f"stepc: snapshots: {others} is not a directory of this user alone: " in result.stderr
