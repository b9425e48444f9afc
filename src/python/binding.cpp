// The Python module stepc._C: errors, log and calibration; its parts are bound by the files beside this one.
#include <memory>
#include <mutex>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>
#include <spdlog/sinks/base_sink.h>

#include <ATen/Parallel.h>
#include <torch/csrc/utils/pybind.h>

#include "base/check.h"
#include "base/files.h"
#include "base/interrupt.h"
#include "base/log.h"
#include "calibrate/calibrate.h"
#include "comm/ranks.h"
#include "cost/target_file.h"
#include "python/interpreter.h"
#include "python/op_rule_binding.h"
#include "python/recording_binding.h"
#include "python/segments_binding.h"
#include "python/step_binding.h"
#include "python/values.h"
#include "python/virtual_binding.h"

namespace stepc {
namespace {

// Log lines go to Python's logging, logger "stepc".
class LoggingSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 protected:
  void sink_it_(const spdlog::details::log_msg& message) override {
    const py::gil_scoped_acquire gil;
    const py::object logger = py::module_::import("logging").attr("getLogger")("stepc");
    const std::string text(message.payload.data(), message.payload.size());
    const int level = static_cast<int>(message.level) * 10;  // debug 10, info 20, warning 30, as in Python
    logger.attr("log")(level, "%s", text);
  }
  void flush_() override {}
};

}  // namespace
}  // namespace stepc

PYBIND11_MODULE(_C, module) {
  using namespace stepc;  // NOLINT: the binding of the whole namespace
  const auto user_error = py::register_exception<UserError>(module, "UserError", PyExc_RuntimeError);
  py::register_exception<LostRank>(module, "LostRank", user_error);
  py::register_exception<RankFailed>(module, "RankFailed", user_error);
  py::register_exception<InternalError>(module, "InternalError", PyExc_RuntimeError);
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      std::rethrow_exception(std::move(thrown));
    } catch (const Interrupt& interrupt) {
      std::rethrow_exception(interrupt.cause());  // the program's own exception, which pybind11 translates itself
    }
  });
  log().sinks() = {std::make_shared<LoggingSink>()};
  log().set_level(spdlog::level::debug);

  module.def("calibrate", [](const std::string& directory, int rounds) {
    const py::gil_scoped_release release;
    std::optional<MeasuringHere> here;
    if (!directory.empty()) here.emplace(directory, at::get_num_threads());
    KernelSources kernels(directory);
    const auto may_be_interrupted = [](const std::string&) {
      const py::gil_scoped_acquire acquire;
      if (PyErr_CheckSignals() != 0) throw py::error_already_set();
    };
    const Target target = calibrate(kernels, may_be_interrupted, rounds);
    if (!directory.empty()) keep_target(directory, target);
    return rates_table(target);
  });

  module.def("check_config", [](const py::object& config) { check(config_of(config)); });
  module.def("write_file",
             [](const std::string& path, const std::string& text) { write_file_synced(path, std::string_view(text)); });
  bind_step(module);
  bind_segments(module);
  bind_recording(module);
  bind_virtual(module);
  bind_op_rules(module);
  bind_interpreter(module);
}
