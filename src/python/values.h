// Values that pass between Python and the engine: tensors, numbers, a config, statistics. Tensors are shared, never
// copied.
#pragma once

#include <vector>

#include <pybind11/pybind11.h>

#include <ATen/core/Tensor.h>

#include "engine/config.h"
#include "engine/stats.h"

namespace stepc {

namespace py = pybind11;

Arg number_of(const py::handle& number);
py::object object_of(const Arg& number);

// In lists None stands for a tensor that is not there.
std::vector<at::Tensor> tensors_of(const py::list& list);
py::list list_of(const std::vector<at::Tensor>& tensors);

// A stepc.Config.
Config config_of(const py::object& chosen);
// With a dict of stepc/ranks.py, or None.
Config config_on(const py::object& chosen, const py::object& parallel);

// Config.elastic. What is not among its keys stays as it is.
Parallel::Elastic elastic_of(const py::dict& chosen);

py::dict dict_of(const Stats& stats);

}  // namespace stepc
