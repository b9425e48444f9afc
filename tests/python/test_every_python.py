"""What holds on every interpreter, quickly: `make test` runs this file in each environment that tools/test_python made."""

import asyncio.base_events
import contextlib
import dis
import email.message
import logging
import opcode
import sys
import types

import pytest
import torch
from torch import nn

import stepc
from harness import source_of
from stepc import _C
from stepc.watch import opcodes
from stepc.watch.bytecode import instructions_of, opcode_names, why_unwatched

STEPS = 20


def codes_in(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from codes_in(constant)


@pytest.mark.skipif(not _C.READS_FRAMES, reason="no frame can be read on this interpreter")
def test_what_every_opcode_reads_is_known():
    """Of this interpreter: those of later versions are named here first, and end watching until then."""
    assert [name for name in opcode_names() if not opcodes.is_known(name)] == []
    assert not opcodes.is_known("LOAD_FROM_THE_FUTURE")
    generic = getattr(opcode, "_specializations", {}).keys() - {"CACHE", "EXTENDED_ARG"}
    assert generic and generic <= dis.opmap.keys()


@pytest.mark.skipif(not _C.READS_FRAMES, reason="no frame can be read on this interpreter")
def test_specialized_code_is_shown_as_it_was_compiled():
    def loop(items, total=0.0):
        for first, second in items:
            kept = [total for total in (first, second)]
            total = total + first * second if first in kept else -total
        return f"{total}"

    before = [(one.offset, one.opname, one.argval, one.depth) for one in instructions_of(loop.__code__)]
    for _ in range(200):
        loop([(1.0, 2.0)] * 20)
    after = [(one.offset, one.opname, one.argval, one.depth) for one in instructions_of(loop.__code__)]
    assert after == before and {name for _, name, _, _ in before} <= set(opcode_names())


@pytest.mark.skipif(not _C.READS_FRAMES, reason="no frame can be read on this interpreter")
@pytest.mark.parametrize("module", [asyncio.base_events, contextlib, email.message, torch.optim.lr_scheduler,
                                    torch.nn.modules.module])
def test_the_depth_of_the_stack_is_known_at_every_opcode(module):
    """One depth for every way to it, coroutines and generators included; on 3.11 the frame itself says it."""
    with open(module.__file__, encoding="utf-8") as file:
        top = compile(file.read(), module.__file__, "exec", dont_inherit=True)
    for code in codes_in(top):
        depths = [one.depth for one in instructions_of(code)]
        assert {one.opname for one in instructions_of(code)} <= set(opcode_names())
        if sys.version_info[:2] == (3, 11):
            assert set(depths) == {None}
        else:
            known = [depth for depth in depths if depth is not None]
            assert known and 0 == min(known) and max(known) <= code.co_stacksize, code


@pytest.mark.skipif(bool(why_unwatched()), reason="no step is watched on this interpreter")
def test_each_instruction_is_reported_at_its_offset():
    """Of a code with more names and constants than an instruction's argument can number."""
    lines = "\n".join(f"    name_{i} = number + {i}.5" for i in range(300))
    found = {}
    exec(f"def step(number):\n{lines}\n    return name_299", found)
    step, reported = found["step"], []

    def follow(frame, event, arg):
        if event == "opcode":
            reported.append(frame.f_lasti)
        return follow

    def start(frame, event, arg):
        if frame.f_code is not step.__code__:
            return None
        frame.f_trace, frame.f_trace_opcodes = follow, True
        return follow

    previous = sys.gettrace()
    sys._getframe().f_trace_opcodes = True
    sys.settrace(start)
    try:
        step(1)
    finally:
        sys.settrace(previous)
    expected = [one.offset for one in instructions_of(step.__code__) if one.opname != "RESUME"]
    assert len(expected) > 900 and not set(expected) - set(reported)


class Calls:
    """Stands for a Watch: keeps what is called, and with what."""

    def __init__(self, code):
        calls = ("PRECALL", "CALL_KW", "CALL_FUNCTION_EX")
        offsets = {one.offset for one in instructions_of(code) if one.opname in calls}
        self.table = {offset: entry for offset, entry in opcodes.table_of(code).items() if offset in offsets}
        self.code, self.found, self.depth = code, [], None

    def top(self, frame, count):
        return _C.top_of_stack(frame, count, self.depth)

    def callable(self, frame, called, arguments):
        self.found.append((called.__name__, *(one for one in arguments if isinstance(one, int))))

    def shallow(self, frame, value):
        pass

    outside_result = None

    def follow(self, frame, event, arg):
        if event == "opcode" and (entry := self.table.get(frame.f_lasti)):
            self.depth = entry[0]
            entry[1](self, frame, *entry[2:])
        return self.follow

    def start(self, frame, event, arg):
        if frame.f_code is not self.code:
            return None
        frame.f_trace, frame.f_trace_opcodes = self.follow, True
        return self.follow


def calls_in_every_way(number, *rest, **named):
    with contextlib.suppress(KeyError):
        for one in (number, number + 1):
            max(one, *rest)
            dict(pow(one, 2, mod=7) for _ in ())
            min(number, one.bit_length(), key=abs)
            try:
                abs({}[one]) if one == number else divmod(one, 2)
            except KeyError as error:
                str.format("{}", *sorted(error.args, reverse=bool(one)))
            finally:
                pow(one, *rest, **named)


@pytest.mark.skipif(not _C.READS_FRAMES, reason="no frame can be read on this interpreter")
def test_what_is_called_is_found_on_the_stack():
    """With arguments by place and by name, of a method, unpacked, in a loop and behind an error."""
    calls, previous = Calls(calls_in_every_way.__code__), sys.gettrace()
    sys._getframe().f_trace_opcodes = True
    sys.settrace(calls.start)
    try:
        calls_in_every_way(3, 5, mod=7)
    finally:
        sys.settrace(previous)
    first = [("max", 3, 5), ("<genexpr>",), ("dict",), ("bit_length", 3), ("min", 3, 2), ("bool", 3), ("sorted", True),
             ("format", 3), ("pow", 3, 5, 7)]
    second = [("max", 4, 5), ("<genexpr>",), ("dict",), ("bit_length", 4), ("min", 3, 3), ("divmod", 4, 2), ("pow", 4, 5, 7)]
    assert [one for one in calls.found if one[0] not in ("suppress", "__exit__")] == first + second


def train(accelerate, printed):
    """Losses and parameters of a step that draws, prints and counts, has a schedule and reads a number."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16, bias=False), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=STEPS)

    def step(x):
        loss = model(x).square().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        if printed is not None:
            printed.append(round(loss.item(), 4))
        return loss.detach()

    call = accelerate(step)
    return call, [call(torch.randn(8, 6, generator=source_of(i))) for i in range(STEPS)], model.state_dict()


def assert_as_eager(config, prints):
    expected, printed = ([], []) if prints else (None, None)
    call, losses, state = train(lambda step: stepc.accelerate(step, config=config), printed)
    _, eager_losses, eager_state = train(lambda step: step, expected)
    exactly = {"rtol": 0, "atol": 0} if config.mode == "exact" else {"rtol": 1e-4, "atol": 1e-6}
    torch.testing.assert_close(losses, eager_losses, **exactly)
    torch.testing.assert_close(state, eager_state, **exactly)
    if prints:
        torch.testing.assert_close(printed, expected, rtol=1e-3, atol=1e-4)
    assert call.stats["failed_checks"] == call.stats["departures"] == 0
    return call


@pytest.mark.parametrize("mode", ["exact", "fast"])
@pytest.mark.parametrize("prints", [False, True])
def test_a_step_as_it_is_replays(mode, prints, caplog):
    """Watched where the interpreter is known and the step has earned it, else traced; and the latter is said once."""
    with caplog.at_level(logging.INFO, "stepc"):
        call = assert_as_eager(stepc.Config(mode=mode, pace="off"), prints)
    assert call.stats["replays"] >= STEPS - 10, call.stats["warnings"]
    said = [line for line in caplog.messages if "CPython" in line]
    if why := why_unwatched():
        assert call.stats["traced"] == why and len(said) == 1
        assert f"CPython {sys.version_info.major}.{sys.version_info.minor} does not show" in said[0]
        assert f"python: traced ({why})" in call.report()
    else:
        assert bool(call.stats["traced"]) == prints and not said


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_pure_step_replays(mode):
    call = assert_as_eager(stepc.Config(mode=mode, python="pure"), prints=False)
    assert (call.stats["traced"], call.stats["checks"]) == ("", 3)
    assert call.stats["replays"] >= STEPS - 8 and call.stats["known_updates"] >= STEPS - 12


@pytest.mark.parametrize("mode", ["exact", "fast"])
def test_a_loop_as_it_is(mode):
    losses = []
    for accelerates in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 4))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        if accelerates:
            model, optimizer = stepc.accelerate(model, optimizer, config=stepc.Config(mode=mode, pace="off"))
        for i in range(STEPS):
            loss = model(torch.randn(8, 6, generator=source_of(i))).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
    torch.testing.assert_close(losses[STEPS:], losses[:STEPS], rtol=1e-4, atol=1e-6)
    assert stepc.stats(optimizer)["replays"] >= STEPS - 8
    of_model = stepc.stats(model)
    assert of_model["replays"] >= STEPS - 8 and of_model["traced"] == why_unwatched() and not of_model["warnings"]
