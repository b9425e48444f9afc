// A Python program: stepc/scout.py finds its modules, optimizers and other objects, and this class reads them at every
// step without running Python code. Holds the containers of tensors (a module's `_parameters`), never tensors.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <pybind11/pybind11.h>

#include "engine/program/program.h"

namespace stepc {

namespace py = pybind11;

// Where a tensor stands: container[name], container.name for an object.
struct Slot {
  enum class Kind : uint8_t { kDict, kSequence, kCell, kAttribute };
  Owner owner = Owner::kCaptured;
  std::string key;
  Kind kind = Kind::kDict;
  py::object container;
  py::object name;
};

// What must not have changed since the program was looked at (stepc/watch/reads.py).
struct Witness {
  enum class How : uint8_t {
    kItem,      // what stands at container[name]: numbers and texts by value, else the same object
    kLength,    // how many elements the container has
    kContents,  // all that it holds, in order
    kType,      // of the container
    kWeak,      // as kItem, and `expected` is a weak reference
    kKind,      // the type of what stands at container[name]
  };
  How how = How::kItem;
  py::object name;
  py::object expected;
};

// The witnesses of one container. One that has the version that it had when they last held needs no look.
struct WatchedContainer {
  py::object container;
  Slot::Kind kind = Slot::Kind::kDict;
  PyObject* dict = nullptr;  // the container, or a class's own
  // What tells a version; nullptr: nothing does.
  const uint64_t* dict_version = nullptr;
  PyTypeObject* type = nullptr;
  uint64_t version = 0;  // 0: they are looked at
  std::vector<Witness> witnesses;
};

class PythonProgram final : public Program {
 public:
  // `scout` is a stepc.scout.Scout: it looks at the program's structure when that has changed, and runs what must be
  // run in Python.
  explicit PythonProgram(py::object scout);
  ~PythonProgram() override;

  void refresh() override;
  const std::vector<OwnedKey>& keys() const override { return keys_; }
  void append_tensors(std::vector<at::Tensor>& out) const override;
  std::vector<std::pair<std::string, at::Generator>> generators() const override { return generators_; }
  uint64_t structure() const override { return structure_; }
  void append_host_state(std::string& out) const override;
  void describe(std::map<std::string, std::string>& out) const override;
  bool can_rebind(Owner owner) const override;
  void rebind(Owner owner, const std::string& key, const at::Tensor& tensor) override;
  void look_lightly(bool lightly) override;
  void trace(const std::string& why) override;
  std::string unfit() const override { return unfit_; }
  void run_event(const std::string& key) override;
  std::optional<HostNumbers> host_numbers(const std::string& key, double count) override;
  std::optional<HostNumbers> run_probe(const std::string& key, double count) override;
  std::shared_ptr<void> save_host_state() override;
  void restore_host_state(const std::shared_ptr<void>& state) override;
  std::shared_ptr<void> save_everything() override;
  void restore_everything(const std::shared_ptr<void>& state) override;
  bool make_state() override;
  std::optional<double> initial_value(const OwnedKey& key) const override;
  void drop_state() override;
  bool is_of_model(const OwnedKey& key) const override;
  void adopt(const std::vector<std::string>& keys) override;
  std::vector<bool> explain(const std::vector<Unowned>& unowned) override;
  std::string source_line() override;
  bool is_hooked(const at::Tensor& parameter) const override;
  std::string python_reason() const override;
  bool is_watched() const override { return true; }
  std::string why_unwatched() const override;
  void settle(bool all) override;

  // For Python's garbage collector, which sees no other owners: everything of Python's that is held, and letting it go.
  int traverse(visitproc visit, void* arg) const;
  void clear();

 private:
  std::optional<HostNumbers> numbers_by(const char* method, const std::string& key, double count) const;
  // By methods of the scout.
  std::shared_ptr<void> saved_by(const char* method);
  void restore(const char* method, const std::shared_ptr<void>& state);

  bool stands();  // every witness holds
  bool holds(const WatchedContainer& watched, const Witness& witness) const;
  bool has_contents(PyObject* container, PyObject* expected) const;
  void look();

  py::object scout_;
  std::vector<Slot> slots_;
  std::vector<WatchedContainer> watched_;
  py::object absent_;                // stands for nothing where something might stand
  py::object contents_of_;           // a container's contents, where C++ does not know it
  std::vector<py::object> flagged_;  // the __dict__ of every module: `training` is read there
  std::vector<OwnedKey> keys_;       // parameters, as many gradients, then the other slots
  size_t parameters_ = 0;
  std::vector<std::pair<std::string, at::Generator>> generators_;
  std::map<std::string, py::object> updates_;    // by event: a stepc.watch.updates.Update
  std::map<std::string, std::string> settings_;  // Python values that decide about the structure, in words
  std::map<std::string, std::string> reads_;     // Python values that are not what the step read at first, in words
  uint64_t structure_ = 0;
  std::set<std::string> beside_model_;  // buffers that their module does not save
  std::string unfit_;
  bool looked_ = false;
  bool is_traced_ = false;  // the step's own code runs at every call
};

// For the class of an object with a program(): Python's garbage collector sees the program behind it.
template <class Owner>
py::custom_type_setup collected() {
  return py::custom_type_setup([](PyHeapTypeObject* heap_type) {
    PyTypeObject& type = heap_type->ht_type;
    type.tp_flags |= Py_TPFLAGS_HAVE_GC;
    type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) {
      Py_VISIT(Py_TYPE(self));
      if (!py::detail::is_holder_constructed(self)) return 0;
      return py::cast<Owner&>(py::handle(self)).program().traverse(visit, arg);
    };
    type.tp_clear = [](PyObject* self) {
      if (py::detail::is_holder_constructed(self)) py::cast<Owner&>(py::handle(self)).program().clear();
      return 0;
    };
  });
}

}  // namespace stepc
