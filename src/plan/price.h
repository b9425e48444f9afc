// The predicted time of one instruction of a Schedule on a Target, without running it: its arithmetic, at the rate of
// its kind and size. The simulator adds the time of its memory traffic, by the distance of the data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "cost/target.h"
#include "ops/communication.h"
#include "schedule/schedule.h"

namespace stepc {

// Whether it is the wait for an exchange that goes on beside other kernels: other waits give nothing.
inline bool ends_exchange(const Instruction& instruction) {
  return instruction.kind == Instruction::Kind::kWait && !instruction.writes.empty();
}

// Classes of work whose predictions are right or wrong together: the rows of the tables that compare predictions with
// measurements.
enum class WorkClass : uint8_t {
  kMatmulBlocked,
  kMatmulLibrary,
  kAttentionBlocked,
  kAttentionLibrary,
  kLoss,
  kGenerated,
  kConvolution,
  kElementwise,  // ATen calls without a row below: arithmetic on streams
  kReduction,
  kNorm,
  kScatter,
  kDraw,
  kStrided,     // across strides: transposed copies
  kOwn,         // the program's own operators, by their rules
  kCollective,  // what the ranks of a mesh compute together
  kHost,        // guards, numbers of host code, seeds; the program's own code is not priced
};
inline constexpr size_t kWorkClasses = static_cast<size_t>(WorkClass::kHost) + 1;
std::string_view name_of(WorkClass work);

struct Price {
  WorkClass work = WorkClass::kHost;
  double compute_seconds = 0;  // with its operands at hand; traffic is added
  double call_seconds = 0;     // before the kernel begins, and between its threads
  size_t link = 0;             // of a collective: the level of links that its compute_seconds load most
};

// Prices the instructions of one Schedule on one Target; caches the prices of the Schedule's programs. Borrows both.
class Pricer {
 public:
  Pricer(const Schedule& schedule, const Target& target);
  Pricer(const Pricer&) = delete;
  Pricer& operator=(const Pricer&) = delete;
  // The time before the first instruction, in which the program's tensors are bound.
  [[nodiscard]] double bind_seconds() const;
  [[nodiscard]] Price price(const Instruction& instruction) const;
  // A core's computation and its waiting hardly overlap (Treibig, Hager: Introducing a performance model for
  // bandwidth-limited loop kernels, 2009), so the times are added. On a GPU some warps compute while others wait.
  [[nodiscard]] double seconds_of(const Price& price, double traffic_seconds) const;

 private:
  struct ProgramPrice {
    double seconds = 0;
    int forks = 0;
  };
  [[nodiscard]] ProgramPrice price_program(const LoopProgram& program) const;
  [[nodiscard]] double epilogue_seconds(const MatmulCall& call, int64_t rows, int64_t columns) const;
  [[nodiscard]] Price price_matmul(const Instruction& instruction) const;
  [[nodiscard]] Price price_attention(const Instruction& instruction) const;
  [[nodiscard]] Price price_aten(const Instruction& instruction) const;
  [[nodiscard]] Price price_collective(const Instruction& instruction) const;
  [[nodiscard]] Price price_nodes(const Instruction& instruction) const;
  [[nodiscard]] double library_matmul_seconds(const Instruction& instruction) const;
  [[nodiscard]] double share_of_documents(const Instruction& instruction) const;
  [[nodiscard]] double library_attention_seconds(const Instruction& instruction, bool backward) const;
  [[nodiscard]] double most_elements(const Instruction& instruction) const;  // of any operand
  [[nodiscard]] double own_operator_seconds(const Instruction& instruction, double most_elements, double alone) const;
  [[nodiscard]] double convolution_seconds(const Instruction& instruction, bool backward) const;
  [[nodiscard]] Price price_host(const Instruction& instruction) const;
  [[nodiscard]] Price price_on_gpu(const Instruction& instruction) const;
  [[nodiscard]] double gpu_norm_seconds(const Instruction& instruction) const;
  [[nodiscard]] double gpu_loss_seconds(const Instruction& instruction) const;
  [[nodiscard]] DType measured_as(DType dtype) const;  // in the tables of rates
  [[nodiscard]] double library_rate(DType dtype, int64_t rows, int64_t columns, int64_t inner) const;
  [[nodiscard]] const CallRate* call_rate(const Instruction& instruction) const;
  [[nodiscard]] const Operand& operand(OperandId id) const { return schedule_.operands[id.index()]; }

  const Schedule& schedule_;
  const Target& target_;
  const Rates& rates_;
  int threads_;
  bool on_gpu_;
  std::vector<ProgramPrice> programs_;
  std::map<std::pair<std::string_view, DType>, const CallRate*> calls_;
};

// The bytes of the operands and results of a LibTorch call, each element once.
double bytes_of_call(const Schedule& schedule, const Instruction& instruction);
// The number of kernel calls in the instruction: a list goes to the kernel tensor by tensor.
double calls_of(const Instruction& instruction);
// The dtype of the results in the tables of call rates: bf16, or f32 for all others.
DType dtype_of_call(const Schedule& schedule, const Instruction& instruction);

// What a collective of a Schedule sends, without its time; nullopt for another instruction.
std::optional<Communication> communication_of(const Schedule& schedule, const Instruction& instruction);

// The elements that a window shows, each once: a dimension of stride 0 repeats them.
double elements_shown(const Shape& sizes, const Shape& strides);
double bytes_shown(const Operand& operand);

}  // namespace stepc
