// What leaves a Graph's step: guards, host code, tensors for the program, updates.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "ops/op_def.h"
#include "schedule/buffers.h"
#include "schedule/graph_writer.h"
#include "schedule/shared_memory.h"

namespace stepc {

namespace {

// Whether different elements of the window may be one: dimensions from the small stride to the large one must each step
// over all that the smaller ones reach. What a stride of 0 repeats does not count.
bool may_meet_itself(const Shape& sizes, const Shape& strides) {
  std::vector<std::pair<int64_t, int64_t>> steps;
  for (size_t d = 0; d < sizes.size(); ++d)
    if (sizes[d] > 1 && strides[d] != 0) steps.emplace_back(strides[d], sizes[d]);
  std::ranges::sort(steps);
  int64_t reach = 0;
  for (const auto& [stride, size] : steps) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

}  // namespace

void GraphWriter::add_guards() {
  for (const GraphOutput& output : graph_.outputs) {
    if (output.kind != GraphOutput::Kind::kGuard) continue;
    const OperandId read = operand(output.tensor);
    Instruction& guard = add(Instruction::Kind::kGuard, source_of(output.tensor));
    guard.op = "guard";
    guard.reads = {read};
    guard.why = "before anything is updated";
  }
}

Source GraphWriter::source_of(TensorId tensor) const {
  const Node* node = graph_.producer(tensor);
  return node == nullptr ? Source{} : node->source;
}

// Host code that supplies numbers alone.
void GraphWriter::add_events(const Trace& trace) {
  for (uint32_t e = 0; e < trace.events.size(); ++e) {
    if (trace.events[e].kind != HostEvent::Kind::kShadow) continue;
    Instruction& event = add(Instruction::Kind::kEvent);
    event.op = trace.events[e].key;
    event.event = e;
    event.in_place = is_behind_guard(trace, trace.events[e]);
    event.why = "the host supplies its numbers";
  }
}

// A pause, or host code that computes: what it finds in the program's memory is there by then.
void GraphWriter::add_host_code(const HostCode& code, const Source& source) {
  std::vector<Leaving> leaving;
  for (const HostCode::Given& one : code.given) leaving.push_back({one.tensor, one.strides, {}, {}, false});
  if (options_.trace != nullptr && code.pauses) {
    const std::vector<ValueId>& values = options_.trace->events.at(code.event).outputs;
    for (size_t g = 0; g < values.size(); ++g) {
      leaving.at(g).value = values[g];
      leaving[g].on_host = is_on_host(values[g]);
    }
  }
  std::vector<OperandId> reads = hand_out(leaving);
  for (size_t g = 0; g < reads.size(); ++g)
    if (!code.pauses && reads[g].valid()) given_to_host_[{leaving[g].tensor, leaving[g].strides}] = reads[g];
  std::vector<OperandId> writes;
  std::vector<Update> updates;
  for (const HostCode::Slot& slot : code.slots) {
    const GraphInput& input = graph_.inputs[slot.input];
    USER_CHECK(k_.on_host.empty() || !k_.on_host[slot.input], "the program's host code changes {} '{}' on the host",
               name_of(input.kind), input.key);
    writes.push_back(of_inputs_[slot.input]);
    if (input.kind == InputKind::kIncoming) continue;
    written_.insert(s_.operands[writes.back().index()].buffer);
    if (slot.before != input.tensor) updates.push_back({slot.input, slot.before});
  }
  add_updates(updates);
  Instruction& host = add(code.pauses ? Instruction::Kind::kPause : Instruction::Kind::kEvent, source);
  host.op = options_.trace == nullptr ? str("{}", code.event) : options_.trace->events.at(code.event).key;
  host.event = code.event;
  host.reads = std::move(reads);
  host.writes = std::move(writes);
  host.why = code.pauses ? "the loop around the step goes on" : "the host computes with what depends on data";
}

BufferId GraphWriter::add_own_buffer(int64_t bytes, Space space) {
  s_.buffers.push_back({Buffer::Kind::kOwn, static_cast<uint64_t>(bytes), 0, 0, "", space});
  return BufferId(s_.buffers.size() - 1);
}

// Where the program sees a value of a step on a device.
bool GraphWriter::is_on_host(ValueId value) const {
  if (s_.device.empty() || !value.valid()) return false;
  const Trace& trace = *options_.trace;
  return trace.storages[trace.values[value.index()].storage.index()].space == Space::kHost;
}

ValueId GraphWriter::rebound_value(const GraphOutput& output) const {
  if (s_.device.empty() || options_.trace == nullptr) return {};
  for (const Rebinding& rebinding : options_.trace->rebindings)
    if (kind_of(rebinding.owner) == output.owner && rebinding.key == output.key) return rebinding.value;
  return {};
}

// A copy for the program, laid out as it saw the tensor.
OperandId GraphWriter::copy_for_program(TensorId tensor, const Shape& strides, Space space) {
  const TensorType& type = graph_.type(tensor);
  Operand own{{}, type.dtype, type.shape, strides, 0};
  if (may_meet_itself(type.shape, strides)) own.strides = contiguous_strides(type.shape);
  own.buffer = add_own_buffer(extent_of(own) * size_of(own.dtype), space);
  const OperandId to = add_operand(s_, std::move(own));
  add_copy(operand(tensor), to, "the program keeps it");
  return to;
}

// What leaves at one time. Those that lie in one memory in the program do so here.
std::vector<OperandId> GraphWriter::hand_out(const std::vector<Leaving>& leaving) {
  std::vector<SharedMemory> shared;
  if (options_.trace != nullptr && graph_.mesh.axes.empty()) {
    std::vector<ValueId> values;
    for (const Leaving& one : leaving) values.push_back(one.value);
    shared = shared_memories(*options_.trace, values);
  }
  std::vector<bool> are_windows(leaving.size(), false);
  for (const SharedMemory& memory : shared)
    for (const SharedMemory::Window& window : memory.windows) are_windows[window.tensor] = true;
  std::set<TensorId> given;
  std::vector<OperandId> out;
  for (const Leaving& one : leaving) {
    const bool waits = one.there.valid() || are_windows[out.size()];
    out.push_back(waits ? one.there : handed_out(one, given));
  }
  for (const SharedMemory& memory : shared) {
    Operand all{{}, graph_.type(leaving[memory.windows.front().tensor].tensor).dtype, {}, {}, 0};
    if (memory.holder)
      all = s_.operands[out[*memory.holder].index()];
    else
      all.buffer = add_own_buffer(memory.elements * size_of(all.dtype),
                                  leaving[memory.windows.front().tensor].on_host ? Space::kHost : space());
    for (const SharedMemory::Window& window : memory.windows) {
      const Leaving& one = leaving[window.tensor];
      Operand part{all.buffer, all.dtype, graph_.shape(one.tensor), seen(one), all.offset + window.offset};
      out[window.tensor] = add_operand(s_, std::move(part));
      if (!memory.holder) add_copy(operand(one.tensor), out[window.tensor], "the program keeps it");
    }
  }
  return out;
}

Shape GraphWriter::seen(const Leaving& one) const {
  return one.strides.empty() ? contiguous_strides(graph_.shape(one.tensor)) : one.strides;
}

OperandId GraphWriter::handed_out(const Leaving& one, std::set<TensorId>& given) {
  if (!one.tensor.valid()) return {};
  if (one.on_host) return copy_for_program(one.tensor, seen(one), Space::kHost);
  const bool is_own = !k_.is_window(one.tensor) && m_.places[one.tensor.index()].kind == Place::Kind::kOwn;
  if (is_own && k_.lie.windows[one.tensor.index()].strides == seen(one) && given.insert(one.tensor).second)
    return operand(one.tensor);
  return copy_for_program(one.tensor, seen(one), space());
}

void GraphWriter::add_outputs() {
  std::vector<Leaving> leaving;
  size_t returned = 0;
  for (const GraphOutput& output : graph_.outputs) {
    ScheduleOutput out;
    Leaving one{output.tensor, output.strides, {}, {}, false};
    switch (output.kind) {
      case GraphOutput::Kind::kRebind:
        out = {ScheduleOutput::Kind::kRebind, {}, output.owner, output.key, {}};
        one.there = rebound(output);
        one.on_host = is_on_host(rebound_value(output));
        break;
      case GraphOutput::Kind::kReturn:
        if (options_.trace != nullptr) one.value = options_.trace->outputs.at(returned++);
        one.on_host = is_on_host(one.value);
        break;
      case GraphOutput::Kind::kNumber:
        out.kind = ScheduleOutput::Kind::kNumber;
        one.there = operand(output.tensor);
        break;
      default:
        continue;
    }
    out.part = output.part;
    s_.outputs.push_back(std::move(out));
    leaving.push_back(std::move(one));
  }
  const std::vector<OperandId> operands = hand_out(leaving);
  for (size_t i = 0; i < operands.size(); ++i) s_.outputs[i].operand = operands[i];
}

// A gradient that an optimizer was given is the one that is left behind. Invalid: none was.
OperandId GraphWriter::rebound(const GraphOutput& output) const {
  const auto known = given_to_host_.find({output.tensor, output.strides});
  return known == given_to_host_.end() ? OperandId() : known->second;
}

// Everything that leaves has been read. An update may stand for what another one writes over: that is copied first.
void GraphWriter::add_updates(const std::vector<Update>& updates) {
  std::set<BufferId> written;
  std::vector<std::pair<OperandId, OperandId>> copies;  // from, to
  for (const Update& update : updates) {
    const OperandId to = of_inputs_[update.input];
    const BufferId buffer = s_.operands[to.index()].buffer;
    written.insert(buffer);
    const OperandId from = operand(update.tensor);
    const bool is_there = s_.operands[from.index()].buffer == buffer && is_in_place(update);
    if (!is_there) copies.emplace_back(from, to);
  }
  for (auto& [from, to] : copies) {
    const Operand source = s_.operands[from.index()];
    if (!written.contains(source.buffer)) continue;
    Operand own{{}, source.dtype, source.sizes, contiguous_strides(source.sizes), 0};
    own.buffer = add_own_buffer(bytes_of(own), s_.buffers[source.buffer.index()].space);
    const OperandId aside = add_operand(s_, std::move(own));
    add_copy(from, aside, "another update writes over it");
    from = aside;
  }
  for (const auto& [from, to] : copies) {
    const bool is_on_host =
        space() == Space::kDevice && s_.buffers[s_.operands[to.index()].buffer.index()].space == Space::kHost;
    if (is_on_host)
      add_copy_across(from, to, to, "the program has it on the host", {Phase::kUpdate, ""});
    else
      add_copy(from, to, "an update that could not be made in place");
  }
  written_.merge(written);
}

void GraphWriter::add_last_updates() {
  std::vector<Update> updates;
  for (const GraphOutput& output : graph_.outputs)
    if (output.kind == GraphOutput::Kind::kUpdate) updates.push_back({output.input, output.tensor});
  add_updates(updates);
  for (ScheduleInput& input : s_.inputs) input.written = written_.contains(s_.operands[input.operand.index()].buffer);
}

bool GraphWriter::is_in_place(const Update& update) const {
  const Place& place = m_.places[k_.lie.roots[update.tensor.index()].index()];
  return place.kind == Place::Kind::kInput && place.input == update.input;
}

std::vector<HostNumber> GraphWriter::host_numbers(const Trace& trace) const {
  std::vector<HostNumber> out;
  for (const HostEvent& event : trace.events) {
    for (size_t c = event.begin.index(); c < event.end.index(); ++c) {
      if (std::ranges::find(event.own_calls, CallId(c)) != event.own_calls.end()) continue;  // the host runs it
      const std::vector<Arg>& args = trace.calls[c].args;
      for (uint32_t a = 0; a < args.size(); ++a) {
        HostNumber number{CallId(c), a, {}, {}, {}};
        const auto add = [&](const std::string& key) {
          const auto found = places_of_numbers_.find(key);
          const bool is_there = found != places_of_numbers_.end() && found->second >= 0;
          if (is_there) number.inputs.push_back(static_cast<uint32_t>(found->second));
          return is_there;
        };
        if (!add(host_number_key(event, CallId(c), a)))
          for (size_t k = 0; add(host_number_key(event, CallId(c), a, k));) ++k;
        if (const auto* integer = std::get_if<int64_t>(&args[a])) number.integer = *integer;
        if (!number.inputs.empty() || number.integer) out.push_back(std::move(number));
      }
    }
  }
  return out;
}

}  // namespace stepc
