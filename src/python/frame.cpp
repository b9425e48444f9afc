#include "python/frame.h"

#include <algorithm>
#include <cstdlib>

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030C0000
#define STEPC_READS_FRAMES 1
#define Py_BUILD_CORE 1  // NOLINT: the interpreter's own name
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#else
#define STEPC_READS_FRAMES 0
#endif

namespace stepc {

namespace py = pybind11;

namespace {
#if STEPC_READS_FRAMES
const _PyInterpreterFrame& inside(const py::handle& frame) {
  if (!PyFrame_Check(frame.ptr())) throw py::type_error("this is no frame");
  return *reinterpret_cast<PyFrameObject*>(frame.ptr())->f_frame;
}

// None where the interpreter has put nothing, below a function that is no method.
py::object object_at(PyObject* found) {
  return found == nullptr ? py::none() : py::reinterpret_borrow<py::object>(found);
}

// The topmost first; fewer where the stack holds fewer, or is not written down at this event.
py::tuple top_of_stack(const py::handle& frame, int count) {
  const _PyInterpreterFrame& held = inside(frame);
  count = std::clamp(held.stacktop - held.f_code->co_nlocalsplus, 0, count);
  py::tuple out(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) out[static_cast<size_t>(i)] = object_at(held.localsplus[held.stacktop - 1 - i]);
  return out;
}

// A local, or the cell of a captured one.
py::object local_of(const py::handle& frame, int index) {
  const _PyInterpreterFrame& held = inside(frame);
  if (index < 0 || index >= held.f_code->co_nlocalsplus) return py::none();
  return object_at(held.localsplus[index]);
}

py::object function_of(const py::handle& frame) { return object_at(reinterpret_cast<PyObject*>(inside(frame).f_func)); }

// The number in an object that no other number is; the interpreter keeps one for each small integer.
py::int_ own_int(const py::int_& number) {
  const auto* const held = reinterpret_cast<PyLongObject*>(number.ptr());
  if (std::abs(Py_SIZE(held)) > 1) return number;
  PyLongObject* const made = _PyLong_New(1);
  if (made == nullptr) throw py::error_already_set();
  made->ob_digit[0] = held->ob_digit[0];
  Py_SET_SIZE(made, Py_SIZE(held));
  return py::reinterpret_steal<py::int_>(reinterpret_cast<PyObject*>(made));
}
#else
py::tuple top_of_stack(const py::handle&, int) { return {}; }
py::object local_of(const py::handle&, int) { return py::none(); }
py::object function_of(const py::handle&) { return py::none(); }
py::int_ own_int(const py::int_& number) { return number; }
#endif
}  // namespace

void bind_frame(py::module_& module) {
  module.attr("READS_FRAMES") = STEPC_READS_FRAMES != 0;
  module.def("top_of_stack", &top_of_stack);
  module.def("local_of", &local_of);
  module.def("function_of", &function_of);
  module.def("own_int", &own_int);
}

}  // namespace stepc
