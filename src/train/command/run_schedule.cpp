#include "train/command/run_schedule.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include <fmt/ranges.h>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/Parallel.h>

#include "base/check.h"
#include "base/files.h"
#include "checkpoint/tensors.h"
#include "runtime/executor.h"
#include "schedule/schedule.h"
#include "train/machine/kernel_directory.h"
#include "train/run/trainer.h"

namespace stepc::train {

namespace fs = std::filesystem;

namespace {

constexpr uint64_t kMostText = uint64_t{1} << 32;
constexpr int kMostThreads = 4096;

using NamedTensor = std::map<std::string, at::Tensor>;

std::string name_of_slot(InputKind kind, const std::string& key) { return str("{} {}", name_of(kind), key); }
std::string name_of_input(const ScheduleInput& input) { return name_of_slot(input.kind, input.key); }

// Broken promises in a file are the file's fault, not stepc's.
template <class F>
auto blame(const fs::path& path, F&& reads) {
  try {
    return reads();
  } catch (const UserError& error) {
    user_error("{}: {}", path.string(), error.what());
  } catch (const InternalError& error) {
    user_error("{}: no Schedule that can run: {}", path.string(), error.what());
  }
}

void check_can_run(const Schedule& schedule) {
  USER_CHECK(schedule.threads <= kMostThreads, "threads {}: at most {}", schedule.threads, kMostThreads);
  USER_CHECK(schedule.generators.size() <= 1, "draws from generators of its program's own, such as '{}'",
             schedule.generators.back());
  for (const Instruction& one : schedule.instructions) {
    USER_CHECK(one.kind != Instruction::Kind::kPause, "pauses for the loop around it");
    USER_CHECK(one.kind != Instruction::Kind::kEvent || one.reads.empty(), "'{}' computes on the host", one.op);
  }
  std::set<std::string> names;
  std::set<uint32_t> supplied;
  for (const HostNumber& number : schedule.host_numbers) supplied.insert(number.inputs.begin(), number.inputs.end());
  for (uint32_t k = 0; k < schedule.inputs.size(); ++k) {
    const std::string name = name_of_input(schedule.inputs[k]);
    USER_CHECK(schedule.inputs[k].kind != InputKind::kIncoming, "pauses for the loop around it");
    USER_CHECK(names.insert(name).second, "two inputs are named \"{}\"", name);
    USER_CHECK(schedule.inputs[k].kind != InputKind::kScalar || supplied.contains(k),
               "no line says which call supplies \"{}\"", name);
  }
}

Schedule load_schedule(const fs::path& path) {
  const std::string text = read_text(path, kMostText);
  return blame(path, [&] {
    Schedule schedule = parse_schedule(text);
    verify(schedule);
    check_can_run(schedule);
    return schedule;
  });
}

// Features matter only if they say which CPU they are from.
void check_machine(const fs::path& path, const Features& wanted, const Features& here) {
  for (const auto& [name, there] : kFeatureNames)
    USER_CHECK(there == &Features::intel || here.*there || !(wanted.*there),
               "{}: for a machine with {}; this one has {}", path.string(), to_text(wanted), to_text(here));
}

// ---- inputs

std::string describe(DType dtype, c10::IntArrayRef sizes) {
  return str("{}[{}]", name_of(dtype), fmt::join(sizes, ", "));
}

// The tensors of the file. The Schedule must need each of them and nothing else.
class Given {
 public:
  explicit Given(const fs::path& path) : path_(path) {
    for (auto& [name, tensor] : load_tensors(path)) tensors_.emplace(name, std::move(tensor));
  }

  void check_names(const Schedule& schedule) const {
    std::vector<std::string> wanted;
    for (const ScheduleInput& input : schedule.inputs)
      if (input.kind != InputKind::kRng && input.kind != InputKind::kMesh) wanted.push_back(name_of_input(input));
    for (const std::string& name : wanted)
      USER_CHECK(tensors_.contains(name), "{}: no tensor \"{}\", which the step reads", path_.string(), name);
    for (const auto& [name, tensor] : tensors_) {
      if (std::ranges::find(wanted, name) != wanted.end()) continue;
      const auto near = nearest(name, wanted);
      user_error("{}: the step reads no tensor \"{}\"{}", path_.string(), name,
                 near ? str(", did you mean \"{}\"?", *near) : "");
    }
  }
  const at::Tensor& take(const std::string& name, DType dtype, const Shape& sizes) const {
    const at::Tensor& tensor = tensors_.at(name);
    const auto given = from_scalar_type(tensor.scalar_type());
    INTERNAL_CHECK(given.has_value());
    USER_CHECK(*given == dtype && tensor.sizes() == c10::IntArrayRef(sizes), "{}: \"{}\" is {}, the step reads {}",
               path_.string(), name, describe(*given, tensor.sizes()), describe(dtype, sizes));
    return tensor;
  }
  [[nodiscard]] const fs::path& path() const { return path_; }

 private:
  fs::path path_;
  NamedTensor tensors_;
};

at::Tensor without_repeats(at::Tensor tensor, const at::Tensor& like) {
  for (int64_t d = 0; d < like.dim(); ++d)
    if (like.stride(d) == 0 && like.size(d) > 1) tensor = tensor.narrow(d, 0, 1);
  return tensor;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.resolve_conj().resolve_neg().contiguous();
  const at::Tensor y = b.resolve_conj().resolve_neg().contiguous();
  return x.nbytes() == y.nbytes() &&
         (x.nbytes() == 0 || std::memcmp(x.const_data_ptr(), y.const_data_ptr(), x.nbytes()) == 0);
}

// The program's tensors: windows on one piece of memory for each buffer, laid out as the Schedule says.
std::vector<at::Tensor> lay_out(const Schedule& schedule, const Given& given) {
  std::map<BufferId, at::Tensor> memory;
  std::vector<at::Tensor> out;
  for (const ScheduleInput& input : schedule.inputs) {
    at::Tensor& window = out.emplace_back();
    if (!is_of_program(input.kind)) continue;
    const Operand& operand = schedule.operands[input.operand.index()];
    const at::Tensor& values = given.take(name_of_input(input), operand.dtype, operand.sizes);
    at::Tensor& bytes = memory[operand.buffer];
    if (!bytes.defined())
      bytes = at::zeros({static_cast<int64_t>(schedule.buffers[operand.buffer.index()].bytes)}, at::kByte);
    window = at::empty({0}, to_scalar_type(operand.dtype));
    window.set_(bytes.storage(), operand.offset, operand.sizes, operand.strides);
    if (operand.conj) window._set_conj(true);
    if (operand.neg) window._set_neg(true);
    without_repeats(window, window).copy_(without_repeats(values, window));
  }
  for (size_t k = 0; k < out.size(); ++k) {
    const ScheduleInput& input = schedule.inputs[k];
    if (!out[k].defined()) continue;
    const Operand& operand = schedule.operands[input.operand.index()];
    const std::string name = name_of_input(input);
    USER_CHECK(same_bits(out[k], given.take(name, operand.dtype, operand.sizes)),
               "{}: \"{}\" shares memory with another input, or with itself, and its values there differ",
               given.path().string(), name);
  }
  return out;
}

void supply_numbers(const Schedule& schedule, const Given& given, Executor& executor) {
  for (const HostNumber& number : schedule.host_numbers) {
    if (number.inputs.empty()) continue;
    c10::List<double> values;
    for (uint32_t input : number.inputs)
      values.push_back(given.take(name_of_input(schedule.inputs[input]), DType::kF64, {}).item<double>());
    executor.supply(number.call, number.arg, values.size() == 1 ? c10::IValue(values.get(0)) : c10::IValue(values));
  }
}

// ---- what comes out

at::Tensor tensor_of(const Arg& number) {
  if (const auto* value = std::get_if<bool>(&number)) return at::scalar_tensor(*value, at::kBool);
  if (const auto* value = std::get_if<int64_t>(&number)) return at::scalar_tensor(*value, at::kLong);
  return at::scalar_tensor(std::get<double>(number), at::kDouble);
}

NamedTensors results_of(const Schedule& schedule, const std::vector<at::Tensor>& inputs, const StepResult& result) {
  NamedTensor out;
  for (size_t k = 0; k < inputs.size(); ++k)
    if (schedule.inputs[k].written && inputs[k].defined()) out[name_of_input(schedule.inputs[k])] = inputs[k];
  // A slot holds the tensor that the step left there, not the one before.
  for (const Bound& bound : result.rebindings) out[name_of_slot(kind_of(bound.owner), bound.key)] = bound.tensor;
  for (size_t k = 0; k < result.outputs.size(); ++k) out[str("return {}", k)] = result.outputs[k];
  for (size_t k = 0; k < result.numbers.size(); ++k) out[str("number {}", k)] = tensor_of(result.numbers[k]);
  NamedTensors named;
  for (const auto& [name, tensor] : out)
    if (tensor.defined()) named.emplace_back(name, tensor);
  return named;
}

}  // namespace

int run_schedule(const RunScheduleCommand& command) {
  const Schedule schedule = load_schedule(command.schedule);
  const Given given(command.inputs);
  given.check_names(schedule);
  KernelSources kernels(command.kernels.empty() ? kernel_directory() : command.kernels);
  check_machine(command.schedule, schedule.features, features_of(kernels.micro_kernels));
  at::set_num_threads(schedule.threads);
  const std::vector<at::Tensor> inputs = lay_out(schedule, given);
  auto executor = blame(command.schedule, [&] { return std::make_unique<Executor>(schedule, &kernels); });
  const std::string why_not = executor->why_not(inputs);
  USER_CHECK(why_not.empty(), "{}: {}", command.schedule.string(), why_not);
  supply_numbers(schedule, given, *executor);
  USER_CHECK(!executor->is_unfit(), "{}: the host supplies other integers than are built in",
             command.schedule.string());
  if (command.seed) at::manual_seed(*command.seed);

  RunInputs run;
  run.tensors = inputs;
  run.on_event = [](size_t, const std::vector<at::Tensor>&) { return std::string(); };  // its numbers are there
  const StepResult result = executor->run(run);
  if (result.missed_guard)
    throw RunFailure(str("{}: a guard of the step does not hold on these inputs", command.schedule.string()));
  const NamedTensors results = results_of(schedule, inputs, result);
  save_tensors(command.out, results);
  fmt::print("{}: {} instructions, {} tensors\n", command.out.string(), schedule.instructions.size(), results.size());
  return 0;
}

}  // namespace stepc::train
