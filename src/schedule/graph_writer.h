// The last stage of schedule_graph(): writes the Schedule of a fused Graph with its chosen kernels and places. Private
// to schedule/. Borrows all arguments; graph_leaving.cpp writes what leaves the step.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ir/trace.h"
#include "schedule/graph_kernels.h"
#include "schedule/graph_places.h"

namespace stepc {

// The stream of exchanges that run beside the computation: one stream gives them one order.
inline constexpr uint32_t kExchangeStream = 1;

class GraphWriter {
 public:
  GraphWriter(const GraphKernels& kernels, const GraphPlaces& places, const GraphScheduleOptions& options,
              GraphSchedule& out)
      : k_(kernels),
        graph_(kernels.graph),
        m_(places),
        options_(options),
        out_(out),
        operand_of_(graph_.tensors.size()) {}

  void write();

 private:
  Instruction& add(Instruction::Kind kind, Source source = {Phase::kUpdate, ""});
  void add_copy(OperandId from, OperandId to, std::string why, Source source = {Phase::kUpdate, ""});

  // ---- the beginning of the step
  void add_generators(const Trace& trace);
  void add_inputs();
  [[nodiscard]] bool has_dtype(BufferId buffer, DType dtype) const;
  OperandId copied_to_device(OperandId host, const Source& source);
  void add_copy_across(OperandId from, OperandId to, OperandId on_host, std::string why, Source source);

  // ---- operands of tensors in memory
  OperandId operand(TensorId tensor);
  std::vector<OperandId> operands(const std::vector<TensorId>& tensors);

  // ---- units
  [[nodiscard]] size_t units_before_guards() const;
  void add_unit(size_t u);
  void write_unit(size_t u);
  OperandId copied_first(OperandId read, Scratch& scratch, const Source& source);
  void reduce_in_place(std::vector<OperandId>& reads, const std::vector<OperandId>& writes, const Source& source);
  void add_wait(const Node& wait);
  static Instruction::Kind kind_of_unit(const GraphKernels::Unit& unit, const Node& first);
  void add_programs(const KernelChoice& choice, Instruction& instruction);
  void expect_results(Instruction& instruction) const;

  // ---- guards, host code, and what leaves the step
  struct Leaving {
    TensorId tensor;       // invalid: nothing leaves
    Shape strides;         // as the program sees it; empty: contiguous
    ValueId value;         // in the trace
    OperandId there;       // the operand that left earlier
    bool on_host = false;  // it leaves a step on a device
  };
  struct Update {
    uint32_t input;
    TensorId tensor;
  };
  void add_guards();
  [[nodiscard]] Source source_of(TensorId tensor) const;
  void add_events(const Trace& trace);
  void add_host_code(const HostCode& code, const Source& source);
  [[nodiscard]] Space space() const { return s_.device.empty() ? Space::kHost : Space::kDevice; }
  [[nodiscard]] bool is_on_host(ValueId value) const;
  [[nodiscard]] ValueId rebound_value(const GraphOutput& output) const;
  BufferId add_own_buffer(int64_t bytes, Space space);
  OperandId copy_for_program(TensorId tensor, const Shape& strides, Space space);
  std::vector<OperandId> hand_out(const std::vector<Leaving>& leaving);
  [[nodiscard]] Shape seen(const Leaving& one) const;
  OperandId handed_out(const Leaving& one, std::set<TensorId>& given);
  void add_outputs();
  [[nodiscard]] OperandId rebound(const GraphOutput& output) const;
  void add_updates(const std::vector<Update>& updates);
  void add_last_updates();
  [[nodiscard]] bool is_in_place(const Update& update) const;
  [[nodiscard]] std::vector<HostNumber> host_numbers(const Trace& trace) const;

  const GraphKernels& k_;
  const Graph& graph_;
  const GraphPlaces& m_;
  const GraphScheduleOptions& options_;
  GraphSchedule& out_;
  Schedule& s_ = out_.schedule;
  std::vector<OperandId> operand_of_;  // by tensor
  std::vector<OperandId> of_inputs_;   // by input: in the program's memory
  std::set<BufferId> written_;         // buffers of the program
  std::map<std::pair<TensorId, Shape>, OperandId> given_to_host_;
  std::map<std::string, int64_t> places_of_numbers_;  // inputs of the host, by key
  std::set<TensorId> waited_for_;                     // first results of exchanges that end with a wait
  std::map<TensorId, uint32_t> marks_;                // of exchanges that run beside others, by first result
  std::map<std::string, uint32_t> program_places_;    // by text
  std::map<std::string, uint32_t> node_places_;       // by text
};

}  // namespace stepc
