// Random training steps as data: a list of instructions on a growing list of small tensors. Any list is a valid step:
// an operand is picked modulo what there is, shapes and dtypes are made to fit, and what PyTorch would refuse (writing
// to what a backward pass needs) is done on a copy.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <span>
#include <vector>

#include <torch/nn/module.h>
#include <torch/utils.h>

namespace stepc::test {

struct Instruction {
  uint8_t op = 0;        // index into operations()
  uint8_t a = 0, b = 0;  // operands
  uint8_t n = 0;         // dimension, index, seed or size
  bool no_grad = false;
};

enum class Update : uint8_t { kNone, kByHand, kAdamW, kTorchSgd, kTorchAdam };
enum class Clearing : uint8_t { kAtEnd, kAtStart, kZeroed, kNever };

struct RandomProgram {
  std::vector<Instruction> code;
  Update update = Update::kNone;
  Clearing clearing = Clearing::kAtEnd;
  uint8_t outputs = 1;
};
std::ostream& operator<<(std::ostream& out, const RandomProgram& program);

struct RandomModelImpl : torch::nn::Module {
  RandomModelImpl();
  at::Tensor weight, bias, table;  // parameters (4, 4), (4), (5, 4)
  at::Tensor mean, total;          // buffers (4), (4, 4)
};
TORCH_MODULE(RandomModel);

// What the machine knows of a memory that several values may share.
struct Memory {
  bool saved = false;  // a backward pass may need it as it is
  bool given = false;  // of the model or the batch: written in no_grad regions only
};

struct Value {
  at::Tensor tensor;
  std::shared_ptr<Memory> memory = std::make_shared<Memory>();
  bool writable = true;
};

// Runs the instructions of one step.
class Machine {
 public:
  Machine(const RandomModel& model, at::Generator generator, const at::Tensor& x, const at::Tensor& ids);

  void run(const Instruction& instruction);
  const std::vector<Value>& values() const { return values_; }

  // For the operations: operands, whatever the index.
  Value pick(uint8_t index) const { return values_[index % values_.size()]; }
  // The operand as a floating point number; `b` of a shape that `a` can be combined with, cast to its dtype.
  static at::Tensor number(const Value& value);
  static at::Tensor fit(const Value& b, const at::Tensor& a);
  // Keeps a result. A view shares what it is a view of.
  void push(const at::Tensor& result, std::initializer_list<Value> operands);
  void push_view(const at::Tensor& view, const Value& of, bool writable = true);
  // The value to write to in place of `value`: itself, or a copy that is kept.
  Value target(const Value& value);
  void forget(uint8_t index);

  // The parameters, the buffers and the batch, in that order.
  const Value& given(size_t index) const { return given_[index]; }
  at::Generator& generator() { return generator_; }

 private:
  at::Generator generator_;
  std::vector<Value> given_;
  std::vector<Value> values_;
};

struct Operation {
  const char* name;
  int weight;  // how often, against the others
  void (*run)(Machine&, const Instruction&);
};
std::span<const Operation> operations();

}  // namespace stepc::test
