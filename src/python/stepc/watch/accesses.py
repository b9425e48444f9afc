"""The reads of attributes, elements and truth values, and the writes, of a watched call's opcodes."""

import collections
import functools
import types

import numpy
import torch

from stepc.tree import IMMUTABLE
from stepc.watch import bare
from stepc.watch.known import (
    BUFFERS, CONTAINERS, ITERATES, PLAIN, SIMPLE, TELLS_ORIGIN, TENSORS, is_library, is_pure_native,
)
from stepc.watch.objects import Objects, has_attributes
from stepc.watch.reads import ABSENT, ITEM, LENGTH

_MISSING = object()


class Accesses(Objects):
    def attribute(self, frame, one, name, words):
        if isinstance(one, types.ModuleType) and self._computes(type(one), name):
            self.place(frame, one, ITEM, name, words)
        elif isinstance(one, types.ModuleType):
            value = one.__dict__.get(name, ABSENT)
            self.place(frame, one.__dict__, ITEM, name, words)
            self.register(value, words)
            if value is ABSENT:
                self.place(frame, one.__dict__, ITEM, "__getattr__", f"{self.words_of(one)}.__getattr__")
        elif isinstance(one, type):
            for kind in (type(one), one):
                self._methods(frame, kind)
            self._class_attribute(frame, type(one).__mro__, name)
            self._class_attribute(frame, one.__mro__, name)
        elif type(one) is super:
            kinds = one.__self_class__.__mro__
            self._class_attribute(frame, kinds[kinds.index(one.__thisclass__) + 1 :], name)
        elif isinstance(one, torch.Tensor):
            if name in TELLS_ORIGIN:
                self.because(frame, f"reads {words}, which tells where a tensor's memory comes from")
            if not _is_of_class(one, name):
                self._attribute_of_tensor(frame, one, name, words)
        elif not isinstance(one, PLAIN) or isinstance(one, (numpy.generic, slice)) or has_attributes(one):
            self._instance_attribute(frame, one, name, words)

    def _attribute_of_tensor(self, frame, one, name, words):
        """An attribute of a tensor that Python code sets."""
        if id(one) in self._batch:
            if name in one.__dict__:  # its structure says whether it has one
                self.because(frame, f"reads {words}, an attribute of a tensor that the step is given")
        elif name in one.__dict__ or isinstance(one, torch.nn.Parameter):
            self.place(frame, one.__dict__, ITEM, name, words)
            self.register(one.__dict__.get(name), words)

    def _computes(self, kind, name):
        """Whether modules of this class have a property of that name, as torch.backends' have."""
        return kind is not types.ModuleType and any(hasattr(type(vars(k).get(name)), "__set__") for k in kind.__mro__)

    def _class_attribute(self, frame, kinds, name):
        for kind in kinds:
            raw = vars(kind).get(name, _MISSING)
            is_setting = isinstance(raw, PLAIN) and not kind.__flags__ & IMMUTABLE
            if is_setting or not is_library(kind.__module__):
                self.place(frame, kind, ITEM, name, f"{kind.__name__}.{name}")
            if raw is _MISSING:
                continue
            self.register(raw, f"{kind.__name__}.{name}")
            for function in (getattr(raw, "__func__", None), getattr(raw, "fget", None)):
                if isinstance(function, types.FunctionType):
                    self.register(function, f"{kind.__name__}.{name}")
            if isinstance(getattr(type(raw), "__get__", None), types.FunctionType) and is_library(type(raw).__module__):
                self.whole(frame, raw)  # like functools.partialmethod, whose code is not inspected
            return raw
        return _MISSING

    def _instance_attribute(self, frame, one, name, words):
        raw = self._class_attribute(frame, type(one).__mro__, name)
        kind = type(raw)
        if kind is functools.cached_property and name not in vars(one):
            if id(one) in self._arguments or id(one) in self._objects or self.is_outside(one):
                self.because(frame, f"changes {words}, which is kept once it was asked for")
            return
        if id(one) in self._objects:
            self._attribute_of_batch(one, name, raw)
            return
        if name == "__dict__":
            if self.is_outside(one):
                self.register(one.__dict__, words)
            return
        if not self.is_outside(one):
            return
        self._type(frame, one, self.words_of(one))
        if raw is not _MISSING and (hasattr(kind, "__set__") or hasattr(kind, "__delete__")):
            if isinstance(raw, (types.MemberDescriptorType, types.GetSetDescriptorType)):
                value = getattr(one, name, ABSENT)
                if isinstance(raw, types.MemberDescriptorType) or isinstance(value, PLAIN):
                    self.place(frame, one, ITEM, name, words)
                self.register(value, words)
            elif isinstance(raw, property):
                if not isinstance(raw.fget, types.FunctionType):  # Python functions are met as frames
                    self.callable(frame, raw.fget, (one,))
            elif not any(isinstance(vars(base).get("__get__"), types.FunctionType) for base in kind.__mro__):
                value = getattr(one, name, ABSENT)
                self.register(value, words)
                if isinstance(value, PLAIN) and not isinstance(one, tuple):
                    self.place(frame, one, ITEM, name, words)
                elif not isinstance(one, tuple):
                    self.because(frame, f"reads {words}, which is not known")
            if isinstance(one, BUFFERS):
                self.shallow(frame, one)
            return
        attributes = getattr(one, "__dict__", None)
        if isinstance(attributes, dict):
            value = dict.get(attributes, name, ABSENT)
            if value is not ABSENT:
                self.place(frame, attributes, ITEM, name, words)
                self.register(value, words)
                return
            self.place(frame, attributes, ITEM, name, words)
            if raw is _MISSING and isinstance(one, torch.nn.Module):
                for held in ("_parameters", "_buffers", "_modules"):
                    self.place(frame, attributes[held], ITEM, name, words)
                    self.register(attributes[held].get(name), words)
        if raw is _MISSING:
            made_by = self._class_attribute(frame, type(one).__mro__, "__getattr__")
            if made_by is not _MISSING and not isinstance(made_by, types.FunctionType):  # those are met as frames
                self.callable(frame, made_by, (one, name))

    def _attribute_of_batch(self, one, name, raw):
        """Tensors in it are the step's inputs; another value that is read is part of the signature."""
        if name == "__dict__":
            self.attributes.add((type(one), None))
            return
        kind = type(raw)
        is_computed = hasattr(kind, "__set__") and kind is not types.MemberDescriptorType
        if not is_computed and not isinstance(getattr(one, name, None), torch.Tensor):
            self.attributes.add((type(one), name))

    def item(self, frame, container, key, words):
        if id(container) in self._arguments or not self.is_outside(container):
            return
        self._type(frame, container, self.words_of(container))
        if isinstance(container, dict):
            if isinstance(container, collections.defaultdict) and not dict.__contains__(container, key):
                self.because(frame, f"changes {words}")
                return
            self.place(frame, container, ITEM, key, words)
            self.register(dict.get(container, key, ABSENT), words)
        elif isinstance(container, (list, tuple)):
            if isinstance(key, int):
                length = bare.length(container)
                index = key + length if key < 0 else key
                if not 0 <= index < length:
                    self.place(frame, container, LENGTH, None, words)
                    return
                if key < 0:
                    self.length(frame, container)
                if isinstance(container, list):
                    self.place(frame, container, ITEM, index, words)
                self.register(bare.method(container, "__getitem__")(index), words)
            else:
                self.shallow(frame, container)
        else:
            self.shallow(frame, container)
            getter = next((vars(k)["__getitem__"] for k in type(container).__mro__ if "__getitem__" in vars(k)), None)
            native = not isinstance(getter, types.FunctionType) and getter is not None
            if native and not isinstance(container, (*ITERATES, *TENSORS, *BUFFERS, type)):
                if not is_pure_native(type(container).__module__):
                    self.because(frame, f"reads {words}, which is not known")

    def truth(self, frame, value):
        self._decides(value)
        if not isinstance(value, SIMPLE):
            self.length(frame, value)

    def length(self, frame, container):
        if self.is_outside(container) and isinstance(container, CONTAINERS):
            self._type(frame, container, self.words_of(container))
            self.place(frame, container, LENGTH, None, self.words_of(container))
        elif self.is_outside(container):
            self.shallow(frame, container)

    def store(self, frame, one, name, words):
        if isinstance(one, type):
            self.because(frame, f"changes {words}")
            return
        if isinstance(one, torch.Tensor):
            if name in ("grad", "requires_grad"):
                return
            if isinstance(one, torch.nn.Parameter) or name in ("data",) or not _is_of_class(one, name):
                self.because(frame, f"changes {words}")
            return
        self.changes(frame, one, words)


def _is_of_class(one, name):
    return name not in one.__dict__ and any(name in vars(kind) for kind in type(one).__mro__)
