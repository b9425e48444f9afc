"""The GPU that stepc.virtual(device="cuda") shows to a program: what torch.cuda asks of a driver, answered without one."""

import types

import torch

from stepc import _C

_target = None  # of the card that this process shows, for the rest of its life


def target() -> str | None:
    return _target


def show(wanted: str) -> None:
    """Makes torch find one GPU, of that target. Throws UserError where there is one, or torch can have none."""
    global _target
    if _target is not None:
        if wanted != _target:
            raise _C.UserError(f'stepc.virtual(device="cuda"): this process shows a {_target} from its first region on, '
                               f"and a {wanted} is asked for: take another process")
        return
    if torch.version.cuda is None:
        raise _C.UserError('stepc.virtual(device="cuda") needs a torch that is built for CUDA, and '
                           f"{torch.__version__} is not")
    card = _C.card_of(wanted)
    sm = card.pop("sm")
    _C.install_virtual_device(sm)
    card |= {"major": sm // 10, "minor": sm % 10, "warp_size": 32, "max_threads_per_multi_processor": 2048,
             "regs_per_multiprocessor": 65536, "is_integrated": 0, "is_multi_gpu_board": 0}
    _answer(types.SimpleNamespace(**card))
    _target = wanted


def refuse(what: str) -> None:
    """Throws UserError where a card is shown that is not there."""
    if _target is not None:
        raise _C.UserError(f'{what}: nothing runs on the GPU of stepc.virtual(device="cuda"); '
                           "stepc.plan(train_step, batch) plans a step for it")


def _only(index: int) -> int:
    if index > 0:
        raise _C.UserError(f'stepc.virtual(device="cuda") has one device, cuda:0, and the program asks for cuda:{index}')
    return 0


def _answer(card) -> None:
    nothing = dict.fromkeys(("init", "synchronize", "ipc_collect", "emptyCache", "resetPeakMemoryStats", "setStream",
                             "resetAccumulatedMemoryStats", "setMemoryFraction"))
    one_stream = (0, 0, int(torch._C._autograd.DeviceType.CUDA.value))
    answers = nothing | {"getDeviceCount": 1, "getDevice": 0, "isInBadFork": False, "memoryStats": {},
                         "hasPrimaryContext": True, "isCurrentStreamCapturing": False, "canDeviceAccessPeer": False,
                         "getCurrentStream": one_stream, "getDefaultStream": one_stream, "getCurrentRawStream": 0}
    for name, answer in answers.items():
        setattr(torch._C, "_cuda_" + name, lambda *_, answer=answer, **__: answer)
    for name in ("setDevice", "exchangeDevice", "maybeExchangeDevice"):
        setattr(torch._C, "_cuda_" + name, _only)
    cuda = torch.cuda
    cuda._exchange_device = cuda._maybe_exchange_device = _only
    cuda.graphs._cuda_isCurrentStreamCapturing = torch._C._cuda_isCurrentStreamCapturing
    cuda._cached_device_count = 1
    cuda._get_device_properties = lambda index: (_only(index), card)[1]
    cuda.default_generators = (_C.virtual_generator(),)
    cuda.mem_get_info = cuda.memory.mem_get_info = lambda device=None: (card.total_memory, card.total_memory)
    cuda.Event, cuda.Stream = _Event, _Stream


class _Stream:
    """The device's one stream, on which nothing runs."""

    device, cuda_stream, stream_id, device_index, device_type = torch.device("cuda:0"), 0, 0, 0, 1

    def __init__(self, *args, **kwargs):
        pass

    def __eq__(self, other):
        return isinstance(other, _Stream)

    __hash__ = object.__hash__

    def query(self):
        return True

    def record_event(self, event=None):
        return event or _Event()

    def wait_event(self, event):
        pass

    wait_stream = wait_event

    def synchronize(self):
        pass


class _Event:
    """Is over as soon as it is recorded, at no time."""

    def __init__(self, *args, **kwargs):
        pass

    def record(self, stream=None):
        pass

    wait = record

    def query(self):
        return True

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        raise _C.UserError('stepc.virtual(device="cuda") runs nothing, so no time passes between two events: '
                           "stepc.plan(...).plan_for() predicts it")
