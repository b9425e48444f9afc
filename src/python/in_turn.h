// One call at a time of all steps of the process: a recording marks, and a verification restores, whatever the step
// reaches, and another thread's step may use the same objects.
#pragma once

#include <mutex>

#include <pybind11/pybind11.h>

namespace stepc {

inline std::recursive_mutex& turns() {
  static std::recursive_mutex mutex;  // a step's own code may call another step
  return mutex;
}

// Taken without the GIL, which the one that runs needs.
template <class Part>
auto in_turn(const Part& part) {
  const pybind11::gil_scoped_release released;
  const std::scoped_lock turn(turns());
  return part();
}

}  // namespace stepc
