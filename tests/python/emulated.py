"""The emulated device (tests/device/emulated_device.cpp) as the backend "emulated" of PyTorch."""

import ctypes
import functools
import os
import pathlib
import types

import torch

import stepc


@functools.cache
def device():
    """Its name; opens its library the first time."""
    torch.utils.rename_privateuse1_backend("emulated")
    module = types.ModuleType("torch.emulated")
    module.is_available = lambda: True
    module.device_count = lambda: int(os.environ.get("EMULATED_DEVICES", "1"))
    module.current_device = torch.accelerator.current_device_index
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    module.get_amp_supported_dtype = list
    module.synchronize = torch.accelerator.synchronize
    torch._register_device_module("emulated", module)
    library()
    return "emulated"


@functools.cache
def library():
    build = pathlib.Path(stepc.__file__).parents[2]
    return ctypes.CDLL(str(next(build.glob("tests/libemulated_device.so"))), mode=ctypes.RTLD_GLOBAL)  # stepc asks it for graphs
