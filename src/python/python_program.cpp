#include "python/python_program.h"

#include <algorithm>
#include <bit>
#include <span>
#include <unordered_map>
#include <utility>

#include <pybind11/stl.h>

#include <torch/csrc/Generator.h>
#include <torch/csrc/autograd/python_variable.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/interrupt.h"
#include "python/gradient_hooks.h"
#include "python/interpreter.h"

namespace stepc {

namespace {

// Returns null, perhaps with an error set, if the slot is empty. The result is an owned reference, because a property
// makes its value anew.
py::object look_up(PyObject* container, PyObject* name, Slot::Kind kind) {
  const auto held = [](PyObject* one) { return py::reinterpret_borrow<py::object>(one); };
  switch (kind) {
    case Slot::Kind::kDict:
      return held(PyDict_GetItemWithError(container, name));
    case Slot::Kind::kSequence: {
      const Py_ssize_t index = PyLong_AsSsize_t(name);
      if (PyList_Check(container))
        return held(index < PyList_GET_SIZE(container) ? PyList_GET_ITEM(container, index) : nullptr);
      return held(index < PyTuple_GET_SIZE(container) ? PyTuple_GET_ITEM(container, index) : nullptr);
    }
    case Slot::Kind::kCell:
      return held(PyCell_GET(container));
    case Slot::Kind::kAttribute:
      return py::reinterpret_steal<py::object>(PyObject_GetAttr(container, name));
  }
  return {};
}

// A look-up may run Python (a tensor's __hash__, a property) and be interrupted; a KeyboardInterrupt belongs to the
// program.
py::object find(PyObject* container, PyObject* name, Slot::Kind kind) {
  py::object found = look_up(container, name, kind);
  if (found || PyErr_Occurred() == nullptr) return found;
  if (PyErr_ExceptionMatches(PyExc_Exception) == 0) throw py::error_already_set();
  PyErr_Clear();
  return {};
}

Slot::Kind kind_of(const py::object& container) {
  if (PyDict_Check(container.ptr())) return Slot::Kind::kDict;
  if (PyList_Check(container.ptr()) || PyTuple_Check(container.ptr())) return Slot::Kind::kSequence;
  if (PyCell_Check(container.ptr())) return Slot::Kind::kCell;
  return Slot::Kind::kAttribute;
}

at::Tensor tensor_at(const Slot& slot) {
  const py::object found = find(slot.container.ptr(), slot.name.ptr(), slot.kind);
  if (!found || !THPVariable_Check(found.ptr())) return {};
  return THPVariable_Unpack(found.ptr());
}

// A class's attributes are read in its own dict.
PyObject* dict_of(PyObject* container) {
  if (PyDict_Check(container)) return container;
  return PyType_Check(container) ? dict_of_class(reinterpret_cast<PyTypeObject*>(container)) : nullptr;
}

// A container without a version has all its witnesses checked at every call.
void find_version(WatchedContainer& watched) {
  if (PyType_Check(watched.container.ptr()))
    watched.type = reinterpret_cast<PyTypeObject*>(watched.container.ptr());
  else if (watched.dict != nullptr)
    watched.dict_version = version_of_dict(watched.dict);
}

// Reads only the version: most containers are in no cache at the time of a step.
uint64_t version_of(const WatchedContainer& watched) {
  if (watched.dict_version != nullptr) return *watched.dict_version;
  return watched.type == nullptr ? 0 : version_of_class(watched.type);
}

void ask_for_version(const WatchedContainer& watched) {
  static PyObject* name = PyUnicode_InternFromString("__init__");
  if (watched.type != nullptr) _PyType_Lookup(watched.type, name);
}

// By the interpreter's own count, as watch/bare.py.
Py_ssize_t length_of(PyObject* container) {
  if (PyDict_Check(container)) return PyDict_GET_SIZE(container);
  if (PyList_Check(container)) return PyList_GET_SIZE(container);
  if (PyAnySet_Check(container)) return PySet_GET_SIZE(container);
  const Py_ssize_t length = PyObject_Size(container);
  if (length < 0) PyErr_Clear();
  return length;
}

// A KeyboardInterrupt is not an error of the code that it interrupts.
template <class Part>
void interruptible(const Part& part) {
  try {
    part();
  } catch (const py::error_already_set& error) {
    if (error.matches(PyExc_Exception)) throw;
    throw Interrupt(std::current_exception());
  }
}

// Whether both are the same object, or the same number or text, bit by bit. A weak reference to a dead object equals
// nothing.
bool is_same(PyObject* a, PyObject* b) {
  if (a == b) return a == nullptr || !PyWeakref_Check(a) || PyWeakref_GetObject(a) != Py_None;
  if (a == nullptr || b == nullptr || Py_TYPE(a) != Py_TYPE(b)) return false;
  if (PyFloat_CheckExact(a))
    return std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(a)) == std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(b));
  return (PyLong_CheckExact(a) || PyUnicode_CheckExact(a)) && PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}

// Of contents: `expected` may be a weak reference.
bool is_held(PyObject* found, PyObject* expected) {
  if (is_same(found, expected)) return true;
  return PyWeakref_Check(expected) && found != Py_None && PyWeakref_GetObject(expected) == found;
}
}  // namespace

PythonProgram::PythonProgram(py::object scout) : scout_(std::move(scout)) { look(); }

PythonProgram::~PythonProgram() {
  const py::gil_scoped_acquire gil;
  clear();
}

int PythonProgram::traverse(visitproc visit, void* arg) const {
  Py_VISIT(scout_.ptr());
  Py_VISIT(absent_.ptr());
  Py_VISIT(contents_of_.ptr());
  for (const Slot& slot : slots_) {
    Py_VISIT(slot.container.ptr());
    Py_VISIT(slot.name.ptr());
  }
  for (const WatchedContainer& watched : watched_) {
    Py_VISIT(watched.container.ptr());
    for (const Witness& witness : watched.witnesses) {
      Py_VISIT(witness.name.ptr());
      Py_VISIT(witness.expected.ptr());
    }
  }
  for (const py::object& module : flagged_) Py_VISIT(module.ptr());
  for (const auto& [key, update] : updates_) Py_VISIT(update.ptr());
  return 0;
}

void PythonProgram::clear() {
  // The slots are moved out first, because releasing objects may run Python code that looks at this program again.
  const auto slots = std::exchange(slots_, {});
  const auto watched = std::exchange(watched_, {});
  const auto flagged = std::exchange(flagged_, {});
  const auto updates = std::exchange(updates_, {});
  const py::object absent = std::exchange(absent_, {});
  const py::object contents_of = std::exchange(contents_of_, {});
  const py::object scout = std::exchange(scout_, {});
  parameters_ = 0;
  keys_.clear();
}

bool PythonProgram::stands() {
  for (WatchedContainer& watched : watched_) {
    if (watched.version != 0 && watched.version == version_of(watched)) continue;
    ask_for_version(watched);
    const uint64_t version = version_of(watched);
    for (const Witness& witness : watched.witnesses)
      if (!holds(watched, witness)) return false;
    watched.version = version;
  }
  return true;
}

bool PythonProgram::holds(const WatchedContainer& watched, const Witness& witness) const {
  PyObject* container = watched.container.ptr();
  PyObject* expected = witness.expected.ptr();
  switch (witness.how) {
    case Witness::How::kLength:
      return length_of(container) == PyLong_AsSsize_t(expected);
    case Witness::How::kType:
      return reinterpret_cast<PyObject*>(Py_TYPE(container)) == expected;
    case Witness::How::kContents:
      return has_contents(container, expected);
    case Witness::How::kItem:
    case Witness::How::kWeak:
    case Witness::How::kKind:
      break;
  }
  const py::object there = find(watched.dict != nullptr ? watched.dict : container, witness.name.ptr(), watched.kind);
  PyObject* found = there.ptr();
  if (witness.how == Witness::How::kKind)
    return found != nullptr && reinterpret_cast<PyObject*>(Py_TYPE(found)) == expected;
  if (witness.how == Witness::How::kWeak) return found != Py_None && PyWeakref_GetObject(expected) == found;
  return found == nullptr ? expected == absent_.ptr() : is_same(found, expected);
}

bool PythonProgram::has_contents(PyObject* container, PyObject* expected) const {
  if (PyODict_Check(container) && PyDict_GET_SIZE(container) == 0) return PyTuple_GET_SIZE(expected) == 0;
  if (PyDict_Check(container) && !PyODict_Check(container)) {
    if (PyTuple_GET_SIZE(expected) != 2 * PyDict_GET_SIZE(container)) return false;
    Py_ssize_t position = 0;
    PyObject* key = nullptr;
    PyObject* value = nullptr;
    for (Py_ssize_t i = 0; PyDict_Next(container, &position, &key, &value) != 0; i += 2)
      if (!is_held(key, PyTuple_GET_ITEM(expected, i)) || !is_held(value, PyTuple_GET_ITEM(expected, i + 1)))
        return false;
    return true;
  }
  if (PyList_Check(container)) {
    if (PyTuple_GET_SIZE(expected) != PyList_GET_SIZE(container)) return false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(container); ++i)
      if (!is_held(PyList_GET_ITEM(container, i), PyTuple_GET_ITEM(expected, i))) return false;
    return true;
  }
  const py::object now = contents_of_(py::handle(container));
  if (PyTuple_Check(now.ptr()) && PyTuple_Check(expected)) {
    if (PyTuple_GET_SIZE(now.ptr()) != PyTuple_GET_SIZE(expected)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(expected); ++i)
      if (!is_held(PyTuple_GET_ITEM(now.ptr(), i), PyTuple_GET_ITEM(expected, i))) {
        const int same = PyObject_RichCompareBool(PyTuple_GET_ITEM(now.ptr(), i), PyTuple_GET_ITEM(expected, i), Py_EQ);
        if (same < 0) PyErr_Clear();
        if (same != 1) return false;
      }
    return true;
  }
  const int same = PyObject_RichCompareBool(now.ptr(), expected, Py_EQ);
  if (same < 0) PyErr_Clear();
  return same == 1;
}

void PythonProgram::refresh() {
  const py::gil_scoped_acquire gil;
  if (!looked_ || !stands()) look();
}

void PythonProgram::look() {
  unfit_ = scout_.attr("unfit")().cast<std::string>();
  if (!unfit_.empty()) {
    looked_ = true;
    return;
  }
  const py::dict found = scout_.attr("look")();
  slots_.clear();
  watched_.clear();
  flagged_.clear();
  generators_.clear();
  keys_.clear();
  std::vector<Slot> others;
  for (const py::handle& item : found["slots"]) {
    const auto row = py::reinterpret_borrow<py::tuple>(item);
    Slot slot;
    slot.owner = static_cast<Owner>(row[0].cast<int>());
    slot.key = row[1].cast<std::string>();
    slot.container = row[2];
    slot.name = row[3];
    slot.kind = kind_of(slot.container);
    (slot.owner == Owner::kParameter ? slots_ : others).push_back(std::move(slot));
  }
  parameters_ = slots_.size();
  for (const Slot& slot : slots_) keys_.push_back({Owner::kParameter, slot.key});
  for (const Slot& slot : slots_) keys_.push_back({Owner::kGradient, slot.key});
  for (Slot& slot : others) {
    keys_.push_back({slot.owner, slot.key});
    slots_.push_back(std::move(slot));
  }
  absent_ = found["absent"];
  contents_of_ = found["contents_of"];
  std::unordered_map<PyObject*, size_t> positions;
  for (const py::handle& item : found["witnesses"]) {
    const auto row = py::reinterpret_borrow<py::tuple>(item);
    const py::object container = row[1];
    const auto [position, is_new] = positions.emplace(container.ptr(), watched_.size());
    if (is_new) {
      PyObject* dict = dict_of(container.ptr());
      WatchedContainer& watched = watched_.emplace_back();
      watched.container = container;
      watched.kind = dict != nullptr ? Slot::Kind::kDict : kind_of(container);
      watched.dict = dict;
      find_version(watched);
    }
    watched_[position->second].witnesses.push_back({static_cast<Witness::How>(row[0].cast<int>()), row[2], row[3]});
  }
  for (const py::handle& item : found["modules"]) flagged_.push_back(py::reinterpret_borrow<py::object>(item));
  for (const py::handle& item : found["generators"]) {
    const auto row = py::reinterpret_borrow<py::tuple>(item);
    generators_.emplace_back(row[0].cast<std::string>(), THPGenerator_Unwrap(py::object(row[1]).ptr()));
  }
  updates_ = found["updates"].cast<std::map<std::string, py::object>>();
  beside_model_ = found["beside_model"].cast<std::set<std::string>>();
  settings_ = found["settings"].cast<std::map<std::string, std::string>>();
  std::string text;
  reads_ = found["reads"].cast<std::map<std::string, std::string>>();
  for (const auto& [setting, value] : settings_) text += str("{}={}\n", setting, value);
  for (const auto& [read, value] : reads_) text += str("{}: {}\n", read, value);
  for (const OwnedKey& key : keys_) text += str("{} {}\n", static_cast<int>(key.owner), key.key);
  structure_ = hash_bytes(std::as_bytes(std::span(text)));
  looked_ = true;
}

void PythonProgram::append_tensors(std::vector<at::Tensor>& out) const {
  const py::gil_scoped_acquire gil;
  const size_t begin = out.size();
  out.reserve(begin + keys_.size());
  for (size_t p = 0; p < parameters_; ++p) out.push_back(tensor_at(slots_[p]));
  for (size_t p = 0; p < parameters_; ++p) {
    const at::Tensor& parameter = out[begin + p];  // stays there: there is room for all
    out.push_back(parameter.defined() && parameter.is_leaf() ? parameter.grad() : at::Tensor());
  }
  for (size_t s = parameters_; s < slots_.size(); ++s) out.push_back(tensor_at(slots_[s]));
}

void PythonProgram::append_host_state(std::string& out) const {
  const py::gil_scoped_acquire gil;
  static PyObject* training = PyUnicode_InternFromString("training");
  for (const py::object& module : flagged_) out += PyDict_GetItem(module.ptr(), training) == Py_True ? 't' : 'e';
  // Hooks on parameters, which their Python objects keep.
  for (size_t p = 0; p < parameters_; ++p) {
    const py::object parameter = find(slots_[p].container.ptr(), slots_[p].name.ptr(), slots_[p].kind);
    if (!parameter || !THPVariable_Check(parameter.ptr())) continue;
    const auto* variable = reinterpret_cast<const THPVariable*>(parameter.ptr());
    for (PyObject* hooks : {variable->backward_hooks, variable->post_accumulate_grad_hooks})
      out += hooks == nullptr || !PyDict_Check(hooks) ? '0' : static_cast<char>('0' + PyDict_GET_SIZE(hooks) % 64);
  }
}

void PythonProgram::describe(std::map<std::string, std::string>& out) const {
  std::string flags;
  append_host_state(flags);
  out["setting: modules in training mode"] = str("{}", std::count(flags.begin(), flags.end(), 't'));
  for (const auto& [setting, value] : settings_) out["setting: " + setting] = value;
  for (const auto& [read, value] : reads_) out[std::string(kPythonValue) + read] = value;
}

bool PythonProgram::is_of_model(const OwnedKey& key) const {
  return Program::is_of_model(key) && !beside_model_.contains(key.key);
}

void PythonProgram::adopt(const std::vector<std::string>& keys) {
  const py::gil_scoped_acquire gil;
  if (scout_.attr("adopt")(keys).cast<bool>()) looked_ = false;
}

bool PythonProgram::can_rebind(Owner owner) const {
  // A parameter stays the same object and gets other memory, which only the step's own code repeats.
  if (owner == Owner::kParameter) return is_traced_;
  return owner == Owner::kCaptured || owner == Owner::kBuffer || owner == Owner::kOptimizerState;
}

void PythonProgram::rebind(Owner owner, const std::string& key, const at::Tensor& tensor) {
  const py::gil_scoped_acquire gil;
  for (const Slot& slot : slots_) {
    if (slot.owner != owner || slot.key != key) continue;
    const py::object value =
        tensor.defined() ? py::reinterpret_steal<py::object>(THPVariable_Wrap(tensor)) : py::none();
    switch (slot.kind) {
      case Slot::Kind::kDict:
        PyDict_SetItem(slot.container.ptr(), slot.name.ptr(), value.ptr());
        return;
      case Slot::Kind::kSequence:
        if (PyList_Check(slot.container.ptr()))
          PyList_SetItem(slot.container.ptr(), PyLong_AsSsize_t(slot.name.ptr()), value.inc_ref().ptr());
        return;
      case Slot::Kind::kCell:
        PyCell_Set(slot.container.ptr(), value.ptr());
        return;
      case Slot::Kind::kAttribute:
        PyObject_SetAttr(slot.container.ptr(), slot.name.ptr(), value.ptr());
        return;
    }
  }
  INTERNAL_CHECK(false, "no slot '{}'", key);
}

void PythonProgram::look_lightly(bool lightly) {
  const py::gil_scoped_acquire gil;
  scout_.attr("looks_lightly") = lightly;
}

void PythonProgram::trace(const std::string& why) {
  const py::gil_scoped_acquire gil;
  scout_.attr("trace")(why);
  is_traced_ = true;
  looked_ = false;
}

void PythonProgram::run_event(const std::string& key) {
  const py::gil_scoped_acquire gil;
  interruptible([&] { scout_.attr("run_event")(key); });
}

std::optional<HostNumbers> PythonProgram::host_numbers(const std::string& key, double count) {
  return numbers_by("numbers", key, count);
}
std::optional<HostNumbers> PythonProgram::run_probe(const std::string& key, double count) {
  return numbers_by("probe", key, count);
}

std::optional<HostNumbers> PythonProgram::numbers_by(const char* method, const std::string& key, double count) const {
  const py::gil_scoped_acquire gil;
  const auto found = updates_.find(key);
  if (found == updates_.end()) return std::nullopt;
  py::object answer;
  interruptible([&] { answer = found->second.attr(method)(count); });
  if (answer.is_none()) return std::nullopt;
  HostNumbers out{PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(answer.ptr(), 0)), {}};
  out.numbers.reserve(static_cast<size_t>(PyTuple_GET_SIZE(answer.ptr())));
  for (Py_ssize_t i = 1; i < PyTuple_GET_SIZE(answer.ptr()); ++i)
    out.numbers.push_back(PyFloat_AsDouble(PyTuple_GET_ITEM(answer.ptr(), i)));
  return out;
}

std::shared_ptr<void> PythonProgram::save_host_state() { return saved_by("save_host_state"); }
void PythonProgram::restore_host_state(const std::shared_ptr<void>& state) { restore("restore_host_state", state); }
std::shared_ptr<void> PythonProgram::save_everything() { return saved_by("save_everything"); }
void PythonProgram::restore_everything(const std::shared_ptr<void>& state) { restore("restore_everything", state); }

std::shared_ptr<void> PythonProgram::saved_by(const char* method) {
  const py::gil_scoped_acquire gil;
  auto* state = new py::object(scout_.attr(method)());
  return {state, [](void* saved) {
            const py::gil_scoped_acquire gil;
            delete static_cast<py::object*>(saved);
          }};
}

void PythonProgram::restore(const char* method, const std::shared_ptr<void>& state) {
  const py::gil_scoped_acquire gil;
  scout_.attr(method)(*std::static_pointer_cast<py::object>(state));
}

bool PythonProgram::make_state() {
  const py::gil_scoped_acquire gil;
  bool made = false;
  interruptible([&] { made = scout_.attr("make_state")().cast<bool>(); });
  return made;
}

std::optional<double> PythonProgram::initial_value(const OwnedKey& key) const {
  if (key.owner != Owner::kOptimizerState) return std::nullopt;
  const py::gil_scoped_acquire gil;
  return scout_.attr("initial_value")(key.key).cast<std::optional<double>>();
}

void PythonProgram::drop_state() {
  const py::gil_scoped_acquire gil;
  scout_.attr("drop_state")();
}

std::vector<bool> PythonProgram::explain(const std::vector<Unowned>& unowned) {
  const py::gil_scoped_acquire gil;
  py::list wanted;
  for (const Unowned& one : unowned)
    wanted.append(py::reinterpret_steal<py::object>(one.generator.defined() ? THPGenerator_Wrap(one.generator)
                                                                            : THPVariable_Wrap(one.tensor)));
  const auto found = scout_.attr("explain")(wanted).cast<std::vector<bool>>();
  if (std::ranges::find(found, true) != found.end()) looked_ = false;
  return found;
}

bool PythonProgram::is_hooked(const at::Tensor& parameter) const {
  const py::gil_scoped_acquire gil;
  return has_gradient_hooks(parameter);
}

std::string PythonProgram::source_line() {
  const py::gil_scoped_acquire gil;
  return scout_.attr("source_line")().cast<std::string>();
}

std::string PythonProgram::python_reason() const {
  const py::gil_scoped_acquire gil;
  return scout_.attr("python_reason")().cast<std::string>();
}

std::string PythonProgram::why_unwatched() const {
  const py::gil_scoped_acquire gil;
  return scout_.attr("why_unwatched")().cast<std::string>();
}

void PythonProgram::settle(bool all) {
  const py::gil_scoped_acquire gil;
  scout_.attr("settle")(all);
}

}  // namespace stepc
