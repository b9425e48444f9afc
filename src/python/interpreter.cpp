#include "python/interpreter.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include <pybind11/stl.h>

#if PY_VERSION_HEX >= 0x030B0000 && PY_VERSION_HEX < 0x030E0000
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

// The interpreter's functions under the names of each version.
#if PY_VERSION_HEX < 0x030C0000
PyObject* code_in(const _PyInterpreterFrame& held) { return reinterpret_cast<PyObject*>(held.f_code); }
PyObject* function_in(const _PyInterpreterFrame& held) { return reinterpret_cast<PyObject*>(held.f_func); }
bool is_one_digit(const PyLongObject* number) { return std::abs(Py_SIZE(number)) <= 1; }
void copy_digit(PyLongObject* to, const PyLongObject* from) {
  to->ob_digit[0] = from->ob_digit[0];
  Py_SET_SIZE(to, Py_SIZE(from));
}
#else
#if PY_VERSION_HEX < 0x030D0000
PyObject* code_in(const _PyInterpreterFrame& held) { return reinterpret_cast<PyObject*>(held.f_code); }
#else
PyObject* code_in(const _PyInterpreterFrame& held) { return held.f_executable; }
#endif
PyObject* function_in(const _PyInterpreterFrame& held) { return held.f_funcobj; }
bool is_one_digit(const PyLongObject* number) { return PyUnstable_Long_IsCompact(number) != 0; }
void copy_digit(PyLongObject* to, const PyLongObject* from) { to->long_value = from->long_value; }
#endif

int locals_in(const _PyInterpreterFrame& held) {
  PyObject* const code = code_in(held);
  if (code == nullptr || !PyCode_Check(code)) throw py::type_error("this frame runs no code object");
  return reinterpret_cast<PyCodeObject*>(code)->co_nlocalsplus;
}

// The depth of the stack if the caller does not know it: 3.11 stores it before it reports an opcode, later versions do
// not.
int depth_in([[maybe_unused]] const _PyInterpreterFrame& held) {
#if PY_VERSION_HEX < 0x030C0000
  return held.stacktop - locals_in(held);
#else
  throw py::value_error("the depth of the stack is not known");
#endif
}

// Returns None for an empty stack entry, such as the one below a function that is no method.
py::object object_at(PyObject* found) {
  return found == nullptr ? py::none() : py::reinterpret_borrow<py::object>(found);
}

// Returns the topmost entry first, and fewer than `count` if the stack is shorter.
py::tuple top_of_stack(const py::handle& frame, int count, std::optional<int> depth) {
  const _PyInterpreterFrame& held = inside(frame);
  const int top = locals_in(held) + (depth ? *depth : depth_in(held));
  count = std::clamp(top - locals_in(held), 0, count);
  py::tuple out(static_cast<size_t>(count));
  for (int i = 0; i < count; ++i) out[static_cast<size_t>(i)] = object_at(held.localsplus[top - 1 - i]);
  return out;
}

// A local, or the cell of a captured one.
py::object local_of(const py::handle& frame, int index) {
  const _PyInterpreterFrame& held = inside(frame);
  if (index < 0 || index >= locals_in(held)) return py::none();
  return object_at(held.localsplus[index]);
}

py::object function_of(const py::handle& frame) { return object_at(function_in(inside(frame))); }

// A copy of the number as an object of its own; the interpreter shares one object for each small integer.
py::int_ own_int(const py::int_& number) {
  const auto* const held = reinterpret_cast<PyLongObject*>(number.ptr());
  if (!is_one_digit(held)) return number;
  PyLongObject* const made = _PyLong_New(1);
  if (made == nullptr) throw py::error_already_set();
  copy_digit(made, held);
  return py::reinterpret_steal<py::int_>(reinterpret_cast<PyObject*>(made));
}
#else
py::tuple top_of_stack(const py::handle&, int, std::optional<int>) { return py::tuple(); }
py::object local_of(const py::handle&, int) { return py::none(); }
py::object function_of(const py::handle&) { return py::none(); }
py::int_ own_int(const py::int_& number) { return number; }
#endif
}  // namespace

void bind_interpreter(py::module_& module) {
  module.attr("READS_FRAMES") = STEPC_READS_FRAMES != 0;
  module.def("top_of_stack", &top_of_stack);
  module.def("local_of", &local_of);
  module.def("function_of", &function_of);
  module.def("own_int", &own_int);
}

#if PY_VERSION_HEX < 0x030C0000
PyObject* dict_of_class(PyTypeObject* kind) { return kind->tp_dict; }
#else
PyObject* dict_of_class(PyTypeObject* kind) { return py::reinterpret_steal<py::object>(PyType_GetDict(kind)).ptr(); }
#endif

#if PY_VERSION_HEX < 0x030D0000
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
const uint64_t* version_of_dict(PyObject* dict) {
  return PyODict_Check(dict) ? nullptr : &reinterpret_cast<PyDictObject*>(dict)->ma_version_tag;
}
#pragma GCC diagnostic pop

uint64_t version_of_class(PyTypeObject* kind) {
  return PyType_HasFeature(kind, Py_TPFLAGS_VALID_VERSION_TAG) == 0 ? 0 : kind->tp_version_tag;
}
#else
const uint64_t* version_of_dict(PyObject*) { return nullptr; }

uint64_t version_of_class(PyTypeObject* kind) { return PY_VERSION_HEX < 0x030E0000 ? kind->tp_version_tag : 0; }
#endif

}  // namespace stepc
