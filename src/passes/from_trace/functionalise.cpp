#include "passes/from_trace/functionalise.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <span>

#include "base/check.h"
#include "ir/agree.h"
#include "ir/alignment.h"
#include "ir/worker_slab.h"
#include "ops/aten_map/aten_map.h"
#include "ops/op_def.h"
#include "passes/from_trace/random_streams.h"
#include "passes/from_trace/storage_contents.h"

namespace stepc {

namespace {

Shape strides_unless_contiguous(const Window& window) {
  return window.strides == contiguous_strides(window.sizes) ? Shape() : window.strides;
}

// What a list that is ordered by calls says of one.
template <class T>
std::span<const T> of_call(const std::vector<T>& list, CallId call) {
  const auto begin = std::partition_point(list.begin(), list.end(), [&](const T& one) { return one.call < call; });
  const auto end = std::partition_point(begin, list.end(), [&](const T& one) { return one.call == call; });
  return {begin, end};
}

const TensorType kHostNumber = {DType::kF64, {}};

class Functionaliser {
 public:
  explicit Functionaliser(const Trace& trace) : trace_(trace), contents_(trace, b_), streams_(trace) {}

  CallGraph run() {
    CallGraph out;
    const std::vector<std::optional<size_t>> events = events_of_host_data(trace_);
    for (size_t e = 0; e < trace_.externals.size(); ++e) add_external(trace_.externals[e], events[e]);
    find_host_calls();
    for (size_t c = 0; c < trace_.calls.size(); ++c) {
      add_host_code(c);
      out.calls.resize(b_.graph().nodes.size());
      if (!on_host_[c]) add_call(CallId(c));
      out.calls.resize(b_.graph().nodes.size(), CallId(c));
    }
    add_host_code(trace_.calls.size());
    add_outputs();
    out.calls.resize(b_.graph().nodes.size());
    out.graph = b_.take();
    return out;
  }

 private:
  struct Taken {  // an external's memory as a graph input
    uint32_t input;
    StorageId storage;
    StorageContents::Base base;
    TensorId there;               // what lies in it since the last host code
    std::optional<size_t> event;  // of the host's data: the one that fills it
  };

  const Value& value(ValueId id) const { return trace_.values[id.index()]; }
  TensorType type_of(ValueId id) const { return {value(id).dtype, value(id).sizes}; }

  // ---- inputs

  void add_external(const External& external, std::optional<size_t> event) {
    const StorageId storage = value(external.value).storage;
    if (contents_.known(storage)) return;  // tied: the first name stands for all
    const StorageContents::Base base = contents_.base_for(external.value);
    if (external.owner == Owner::kConstant) return contents_.introduce(storage, base, constant(external, base));
    GraphInput input;
    input.kind = stepc::kind_of(external.owner);
    input.key = external.key;
    input.strides = strides_unless_contiguous(base.window);
    input.offset = base.window.offset;
    const auto index = static_cast<uint32_t>(b_.graph().inputs.size());
    const TensorId tensor = b_.graph().add_input(std::move(input), {base.dtype, base.window.sizes});
    taken_.push_back({index, storage, base, tensor, event});
    contents_.introduce(storage, base, tensor);
  }

  // The bytes of a tensor that host data made, as a constant: bytes, seen as the dtype.
  TensorId constant(const External& external, const StorageContents::Base& base) {
    const auto found = std::ranges::find(trace_.constants, external.key, &Constant::key);
    INTERNAL_CHECK(found != trace_.constants.end(), "constant '{}' has no bytes", external.key);
    const Window all = {{static_cast<int64_t>(found->bytes.size())}, {1}, 0};
    Shape bytes;
    for (char c : found->bytes) bytes.push_back(static_cast<uint8_t>(c));
    const TensorId raw =
        b_.add("constant", {}, {{"shape", all.sizes}, {"dtype", DType::kU8}, {"integers", std::move(bytes)}});
    const TensorId typed = base.dtype == DType::kU8 ? raw : b_.add("bitcast", {raw}, {{"dtype", base.dtype}});
    return view_of(b_, typed, {b_.shape(typed), {1}, 0}, base.window);
  }

  TensorId rng(GeneratorId generator) {
    TensorId& rng = rngs_[generator];
    if (!rng.valid()) rng = b_.graph().add_input({InputKind::kRng, rng_key(generator), {}, {}, 0}, {DType::kI64, {2}});
    return rng;
  }

  // A number that the host gives anew at each step.
  TensorId scalar(const std::string& key) {
    TensorId& tensor = scalars_[key];
    if (!tensor.valid()) tensor = b_.graph().add_input({InputKind::kScalar, key, {}, {}, 0}, kHostNumber);
    return tensor;
  }

  // ---- host events: calls that the host makes itself, and numbers that it passes

  void find_host_calls() {
    on_host_.assign(trace_.calls.size(), false);
    event_of_.assign(trace_.calls.size(), nullptr);
    for (const HostEvent& event : trace_.events) {
      for (size_t c = event.begin.index(); c < event.end.index(); ++c) {
        if (event.kind == HostEvent::Kind::kEager) on_host_[c] = true;
        event_of_[c] = &event;
      }
      for (CallId call : event.own_calls) on_host_[call.index()] = true;
    }
  }

  // Before call `c`: a pause, or an optimizer that runs on its own. (Numbers of the others are inputs.)
  void add_host_code(size_t c) {
    for (uint32_t e = 0; e < trace_.events.size(); ++e)
      if (trace_.events[e].begin.index() == c && trace_.events[e].kind != HostEvent::Kind::kShadow) add_host_code_of(e);
  }

  void add_host_code_of(uint32_t e) {
    const HostEvent& event = trace_.events[e];
    HostCode code;
    code.event = e;
    if (event.kind == HostEvent::Kind::kRead) return add_read_of(event, code);
    code.pauses = event.kind == HostEvent::Kind::kPause;
    if (code.pauses)
      for (ValueId output : event.outputs) code.given.push_back(given(output));
    else
      for (const Rebinding& gradient : event.gradients)
        code.given.push_back(is_there(gradient) ? HostCode::Given() : given(gradient.value));
    const std::set<StorageId> written = written_by(event);
    std::vector<size_t> changed;  // in taken_
    for (size_t t = 0; t < taken_.size(); ++t) {
      const Taken& taken = taken_[t];
      const TensorId now = contents_.read(taken.storage, taken.base);
      const bool fills = code.pauses && (kind_of(taken) == InputKind::kIncoming || taken.event == e);
      if (!fills && now == taken.there && !written.contains(taken.storage)) continue;
      code.slots.push_back({taken.input, now, {}});
      changed.push_back(t);
    }
    const std::vector<std::string> numbers = code.pauses ? take_numbers(event, code) : std::vector<std::string>();
    b_.set_source({code.pauses ? Phase::kForward : Phase::kUpdate, ""});
    std::vector<TensorType> types;
    for (const HostCode::Slot& slot : code.slots) types.push_back(b_.type(slot.before));
    const std::vector<TensorId> after = b_.add_aten(node_of(code), types);
    for (size_t n = 0; n < numbers.size(); ++n) scalars_[numbers[n]] = after[changed.size() + n];
    for (size_t s = 0; s < changed.size(); ++s) {
      Taken& taken = taken_[changed[s]];
      taken.there = after[s];
      contents_.introduce(taken.storage, taken.base, after[s]);
    }
    for (StorageId storage : written)
      if (std::ranges::none_of(taken_, [&](const Taken& one) { return one.storage == storage; }))
        changed_by_host_.insert(storage);
    if (code.pauses) streams_.resume();
  }
  // The program reads a number, or makes a call itself, and gives what calls take from here on, up to its next read.
  void add_read_of(const HostEvent& event, HostCode& code) {
    code.pauses = true;
    for (ValueId output : event.outputs) code.given.push_back(given(output));
    const std::vector<std::string> keys = take_numbers(event, code);
    std::vector<TensorType> types(keys.size(), kHostNumber);
    std::vector<Taken*> filled;
    for (Taken& taken : taken_) {
      if (taken.event != code.event) continue;
      filled.push_back(&taken);
      code.slots.push_back({taken.input, taken.there, {}});
      types.push_back(b_.type(taken.there));
    }
    b_.set_source({Phase::kForward, ""});
    const std::vector<TensorId> after = b_.add_aten(node_of(code), types);
    for (size_t k = 0; k < keys.size(); ++k) scalars_[keys[k]] = after[k];
    for (size_t f = 0; f < filled.size(); ++f) {
      filled[f]->there = after[keys.size() + f];
      contents_.introduce(filled[f]->storage, filled[f]->base, filled[f]->there);
    }
  }
  // The keys of the numbers that the program gives from the stop `event` up to the next one, which `code` takes.
  std::vector<std::string> take_numbers(const HostEvent& event, HostCode& code) {
    std::vector<std::string> keys;
    for (size_t c = event.begin.index(); c < trace_.calls.size() && !is_stop_before(c, event); ++c)
      for (std::string& key : host_number_keys(CallId(c))) keys.push_back(std::move(key));
    for (const std::string& key : keys)
      code.slots.push_back({static_cast<uint32_t>(b_.graph().inputs.size()), scalar(key), {}});
    return keys;
  }
  bool is_stop_before(size_t call, const HostEvent& since) const {
    return std::ranges::any_of(trace_.events, [&](const HostEvent& event) {
      return is_stop(event) && event.begin.index() == call && &event > &since;
    });
  }
  HostCode::Given given(ValueId id) {
    if (!id.valid()) return {};
    return {read(id), strides_unless_contiguous(window_of(value(id)))};
  }
  // Whether the program had it before the step: then it lies where the optimizer finds it.
  bool is_there(const Rebinding& gradient) const {
    return gradient.value.valid() && std::ranges::any_of(trace_.externals, [&](const External& external) {
             return external.owner == Owner::kGradient && external.key == gradient.key &&
                    value(external.value).storage == value(gradient.value).storage;
           });
  }
  // What host code changes that is there before and after it.
  std::set<StorageId> written_by(const HostEvent& event) const {
    std::set<StorageId> written;
    for (size_t c = event.begin.index(); c < event.end.index(); ++c)
      for (ValueId id : trace_.calls[c].writes)
        if (contents_.known(value(id).storage)) written.insert(value(id).storage);
    return written;
  }
  InputKind kind_of(const Taken& taken) { return b_.graph().inputs[taken.input].kind; }

  // The real numbers among a call's arguments, where a host event supplies them, as scalar inputs.
  std::vector<Arg> with_host_numbers(CallId id) {
    std::vector<Arg> args = trace_.calls[id.index()].args;
    const HostEvent* event = event_of_[id.index()];
    if (event == nullptr) return args;
    for (size_t i = 0; i < args.size(); ++i) {
      if (is_host_number(*event, args[i])) args[i] = as_value(scalar(host_number_key(*event, id, i)));
      if (const auto* reals = std::get_if<std::vector<double>>(&args[i])) {
        std::vector<ValueId> values;
        for (size_t k = 0; k < reals->size(); ++k)
          values.push_back(as_value(scalar(host_number_key(*event, id, i, k))));
        args[i] = std::move(values);
      }
    }
    return args;
  }
  // Their keys.
  std::vector<std::string> host_number_keys(CallId id) const {
    std::vector<std::string> keys;
    const HostEvent* event = event_of_[id.index()];
    if (event == nullptr || on_host_[id.index()]) return keys;
    const std::vector<Arg>& args = trace_.calls[id.index()].args;
    for (size_t i = 0; i < args.size(); ++i) {
      if (is_host_number(*event, args[i])) keys.push_back(host_number_key(*event, id, i));
      const auto* reals = std::get_if<std::vector<double>>(&args[i]);
      for (size_t k = 0; reals != nullptr && k < reals->size(); ++k) keys.push_back(host_number_key(*event, id, i, k));
    }
    return keys;
  }
  // A real; or of a call that is an event of its own, an integer among reals.
  static bool is_host_number(const HostEvent& event, const Arg& arg) {
    const auto* wrapped = std::get_if<WrappedNumber>(&arg);
    if (wrapped == nullptr) return std::holds_alternative<double>(arg);
    return std::holds_alternative<double>(wrapped->number) ||
           (event.key.empty() && std::holds_alternative<int64_t>(wrapped->number));
  }

  static bool is_wrapped_number(const Arg& arg) {
    const auto* read = std::get_if<ReadNumber>(&arg);
    return std::holds_alternative<WrappedNumber>(arg) || (read != nullptr && read->wrapped);
  }

  // A tensor that no value of the trace stands for, under a number behind the trace's own.
  ValueId as_value(TensorId tensor) {
    extra_.push_back(tensor);
    return ValueId(trace_.values.size() + extra_.size() - 1);
  }
  TensorId read(ValueId id) {
    if (id.index() >= trace_.values.size()) return extra_[id.index() - trace_.values.size()];
    USER_CHECK(!changed_by_host_.contains(value(id).storage), "what host code changes of the step's own is read again");
    return contents_.read(id);
  }

  TensorId number(const ReadNumber& read) {
    const auto found = numbers_.find(read.read);
    USER_CHECK(found != numbers_.end(),
               "{} reads a number on the host that later calls use; a Graph cannot say what it computes",
               trace_.calls[read.read.index()].op);
    switch (read.kind) {
      case ReadNumber::Kind::kBool:
        return b_.cast(found->second, DType::kBool);
      case ReadNumber::Kind::kInt:
        return b_.cast(found->second, DType::kI64);
      case ReadNumber::Kind::kDouble:
        return b_.cast(found->second, DType::kF64);
    }
    return {};
  }

  // What a call that gives the host a number computes, as a 0-dim tensor.
  void add_host_read(CallId id) {
    const Call& call = trace_.calls[id.index()];
    const std::string_view name = std::string_view(call.op).substr(0, call.op.find('.'));
    const auto* first = call.args.empty() ? nullptr : std::get_if<ValueId>(&call.args[0]);
    if (first == nullptr) return;
    if (name == "aten::_local_scalar_dense" || name == "aten::item") {
      numbers_[id] = b_.reshape(read(*first), {});
    } else if (name == "aten::is_nonzero") {
      numbers_[id] = b_.cast(b_.reshape(read(*first), {}), DType::kBool);
    } else if (name == "aten::equal") {
      const TensorId same = b_.add("eq", {read(*first), read(std::get<ValueId>(call.args[1]))});
      Shape dims;
      for (size_t d = 0; d < b_.shape(same).size(); ++d) dims.push_back(static_cast<int64_t>(d));
      numbers_[id] = b_.add("all", {same}, {{"dims", dims}});
    }
  }

  // ---- calls

  void add_call(CallId id) {
    const Call& call = trace_.calls[id.index()];
    b_.set_source({call.phase, call.module});
    streams_.before(id);
    if (std::ranges::any_of(trace_.reads, [&](const HostRead& read) { return read.call == id; })) {
      USER_CHECK(call.results.empty() || !std::holds_alternative<ValueId>(call.results[0]),
                 "the shape of what {} makes depends on data", call.op);
      add_host_read(id);
      return;
    }
    // What the call changes: each written value, then the first value on each storage that it makes.
    std::vector<ValueId> fresh;
    std::set<StorageId> made;
    for_each_value(call.results, [&](ValueId result) {
      const StorageId storage = value(result).storage;
      if (!contents_.known(storage) && made.insert(storage).second) fresh.push_back(result);
    });
    if (call.writes.empty() && fresh.empty()) return;  // views, checks
    const std::vector<Arg> args = with_host_numbers(id);
    if (!map_call(call, args, fresh)) add_opaque(id, args, fresh);
    streams_.after(id);
  }

  void take_results(const Call& call, const std::vector<ValueId>& fresh, const std::vector<TensorId>& tensors) {
    INTERNAL_CHECK_EQ(tensors.size(), call.writes.size() + fresh.size(), "{}", call.op);
    for (size_t k = 0; k < tensors.size(); ++k) {
      const bool is_write = k < call.writes.size();
      const ValueId target = is_write ? call.writes[k] : fresh[k - call.writes.size()];
      INTERNAL_CHECK(b_.type(tensors[k]) == type_of(target), "{} (in '{}') gave a {} and its row a {}", call.op,
                     call.module, to_text(type_of(target)), to_text(b_.type(tensors[k])));
      if (is_write)
        contents_.write(target, tensors[k]);
      else
        contents_.introduce(target, tensors[k]);
    }
  }

  // By the ATen map; false where it has no row that fits, with nothing left behind but unused nodes.
  bool map_call(const Call& call, const std::vector<Arg>& args, const std::vector<ValueId>& fresh) {
    if (find_aten_row(call.op).row == nullptr) return false;
    std::vector<TensorType> types;
    for (ValueId written : call.writes) types.push_back(type_of(written));
    for (ValueId result : fresh) types.push_back(type_of(result));
    const AtenMapper::Environment environment = {
        [&](ValueId id) { return read(id); }, [&](const ReadNumber& n) { return number(n); },
        [&](const std::vector<Arg>& of) { return rng(RandomStreams::generator_of(of)); },
        [&](const std::vector<Arg>& of) { return streams_.next(of); }};
    AtenMapper mapper(b_, environment, args, types);
    try {
      take_results(call, fresh, map_aten(call.op, mapper));
    } catch (const AtenMapper::Unmapped&) {
      return false;
    }
    return true;
  }

  // What the call's kernel took beside its results when it was recorded, placed as a replay will place it.
  void measure(CallId id, const std::vector<ValueId>& fresh, AtenCall& call) const {
    call.measured = !trace_.allocations.empty() || !trace_.scratch.empty();
    // A replay gives the places of results to whatever asks first for as many bytes, and again once that is freed.
    std::vector<uint64_t> results;
    for (ValueId result : fresh) results.push_back(static_cast<uint64_t>(bytes_of(type_of(result))));
    struct Change {  // at a tick memory goes before it comes
      int64_t tick;
      bool comes;
      size_t block;
      auto operator<=>(const Change&) const = default;
    };
    struct Block {
      uint64_t bytes;
      std::optional<uint64_t> offset;  // none: in the place of a result
    };
    std::vector<Change> changes;
    std::vector<Block> blocks;
    for (const Allocation& one : of_call(trace_.allocations, id)) {
      if (one.kept && !one.storage.valid()) continue;
      changes.push_back({one.first, true, blocks.size()});
      changes.push_back({one.last, false, blocks.size()});
      blocks.push_back({one.bytes, {}});
    }
    std::ranges::sort(changes);
    WorkerSlab slab;
    for (const Change& change : changes) {
      Block& block = blocks[change.block];
      const auto place = std::ranges::find(results, block.bytes);
      if (change.comes && place != results.end())
        results.erase(place);
      else if (change.comes)
        block.offset = slab.allocate(block.bytes);
      else if (block.offset)
        slab.free(*block.offset);
      else
        results.push_back(block.bytes);
    }
    // What is made in another layout than a Graph's has to be moved aside before it is copied to its place.
    uint64_t aside = 0;
    for (ValueId result : fresh)
      if (!is_contiguous(value(result)) && !is_channels_last(result))
        aside += aligned(static_cast<uint64_t>(bytes_of(type_of(result))));
    call.workspace_bytes = std::max(slab.high_water(), aside);
    for (const WorkerScratch& one : of_call(trace_.scratch, id))
      call.worker_bytes = std::max(call.worker_bytes, aligned(one.bytes));
  }

  // Its elements in that order and nothing else in its memory.
  bool is_channels_last(ValueId id) const {
    const Value& made = value(id);
    return !is_contiguous(made) && made.offset == 0 && !made.neg && !made.conj &&
           made.strides == channels_last_strides(made.sizes);
  }

  void add_opaque(CallId id, const std::vector<Arg>& args, const std::vector<ValueId>& fresh) {
    const Call& call = trace_.calls[id.index()];
    Node node;
    node.op = call.op;
    node.aten.emplace();
    node.aten->draws = draws_random(call.op);
    measure(id, fresh, *node.aten);
    std::vector<ValueId> given;         // the value of each input
    std::vector<DimNames::Names> dims;  // of each, as the program's rule names them
    const bool names_dims = call.rule && call.rule->dims;
    size_t operand = 0;  // of the rule: tensors, and numbers that arrive as such
    const auto name_dims = [&](bool is_number) {
      if (names_dims) dims.push_back(is_number ? DimNames::Names() : call.rule->dims->operands.at(operand++));
    };
    const auto input = [&](ValueId id) {
      if (!id.valid()) return ValueId();
      const bool is_number = id.index() >= trace_.values.size();
      Shape strides = is_number ? Shape() : strides_unless_contiguous(window_of(value(id)));
      if (!strides.empty()) node.aten->layouts.emplace_back(node.inputs.size(), std::move(strides));
      node.inputs.push_back(read(id));
      given.push_back(id);
      name_dims(is_number);
      return ValueId(node.inputs.size() - 1);
    };
    for (size_t a = 0; a < args.size(); ++a) {
      const Arg& arg = args[a];
      if (is_wrapped_number(call.args[a])) ++operand;
      if (const auto* one = std::get_if<ValueId>(&arg)) {
        node.aten->args.emplace_back(input(*one));
      } else if (const auto* list = std::get_if<std::vector<ValueId>>(&arg)) {
        std::vector<ValueId> inputs;
        for (ValueId id : *list) inputs.push_back(input(id));
        node.aten->args.emplace_back(std::move(inputs));
      } else if (const auto* host = std::get_if<ReadNumber>(&arg)) {
        node.inputs.push_back(number(*host));
        given.emplace_back();
        name_dims(/*is_number=*/true);
        node.aten->args.emplace_back(ValueId(node.inputs.size() - 1));
      } else {
        node.aten->args.push_back(arg);
      }
    }
    node.aten->rule = call.rule;
    if (names_dims) node.aten->rule->dims->operands = std::move(dims);
    std::vector<TensorType> types;
    const auto output = [&](ValueId id) {
      if (std::ranges::find(fresh, id) == fresh.end()) return ValueId();
      types.push_back(type_of(id));
      if (is_channels_last(id)) node.aten->result_layouts.emplace_back(types.size() - 1, value(id).strides);
      return ValueId(types.size() - 1);
    };
    for (const Arg& result : call.results) {
      if (const auto* one = std::get_if<ValueId>(&result)) {
        const ValueId made = one->valid() ? output(*one) : ValueId();
        if (made.valid() || !one->valid())
          node.aten->results.emplace_back(made);
        else
          node.aten->results.emplace_back(std::monostate());
      } else if (const auto* list = std::get_if<std::vector<ValueId>>(&result)) {
        std::vector<ValueId> outputs;
        for (ValueId id : *list) outputs.push_back(output(id));
        node.aten->results.emplace_back(std::move(outputs));
      } else {
        node.aten->results.emplace_back(std::monostate());
      }
    }
    for (ValueId written : call.writes) {
      const auto place = std::ranges::find(given, written);
      INTERNAL_CHECK(place != given.end(), "{} writes what it is not given", call.op);
      node.aten->writes.push_back(static_cast<uint32_t>(place - given.begin()));
      types.push_back(type_of(written));
    }
    std::vector<TensorId> outputs = b_.add_aten(std::move(node), types);
    std::rotate(outputs.begin(), outputs.end() - static_cast<ptrdiff_t>(call.writes.size()),
                outputs.end());  // writes first
    take_results(call, fresh, outputs);
  }

  // ---- outputs

  void add_output(GraphOutput::Kind kind, ValueId id, const std::string& key = {}, Owner owner = Owner::kGradient) {
    GraphOutput output;
    output.kind = kind;
    output.key = key;
    if (kind == GraphOutput::Kind::kRebind) output.owner = stepc::kind_of(owner);
    if (id.valid()) {
      output.tensor = kind == GraphOutput::Kind::kRebind ? contents_.read(id) : read(id);
      output.strides = strides_unless_contiguous(window_of(value(id)));
    }
    b_.graph().outputs.push_back(std::move(output));
  }
  void rebind(const Rebinding& slot) { add_output(GraphOutput::Kind::kRebind, slot.value, slot.key, slot.owner); }

  void add_guards() {
    for (const HostRead& read : trace_.reads) {
      if (!read.guard || numbers_.count(read.call) == 0) continue;
      const TensorId x = numbers_[read.call];
      const Arg& expected = trace_.calls[read.call.index()].results.at(0);
      TensorId constant;
      if (const auto* flag = std::get_if<bool>(&expected))
        constant = b_.full(*flag ? 1 : 0, DType::kBool);
      else if (const auto* integer = std::get_if<int64_t>(&expected))
        constant = b_.add("full", {}, {{"value", *integer}, {"dtype", DType::kI64}, {"shape", Shape()}});
      else if (const auto* real = std::get_if<double>(&expected))
        constant = b_.full(*real, DType::kF64);
      else
        continue;
      GraphOutput output;
      output.kind = GraphOutput::Kind::kGuard;
      output.tensor = b_.add("eq", {b_.cast(x, b_.dtype(constant)), constant});
      b_.graph().outputs.push_back(std::move(output));
    }
  }

  void add_numbers() {
    for (const Arg& arg : trace_.numbers) {
      GraphOutput output;
      output.kind = GraphOutput::Kind::kNumber;
      if (const auto* read = std::get_if<ReadNumber>(&arg))
        output.tensor = number(*read);
      else if (const auto* flag = std::get_if<bool>(&arg))
        output.tensor = b_.full(*flag ? 1 : 0, DType::kBool);
      else if (const auto* integer = std::get_if<int64_t>(&arg))
        output.tensor = b_.add("full", {}, {{"value", *integer}, {"dtype", DType::kI64}, {"shape", Shape()}});
      else
        output.tensor = b_.full(std::get<double>(arg), DType::kF64);
      b_.graph().outputs.push_back(std::move(output));
    }
  }

  void add_outputs() {
    b_.set_source({Phase::kUpdate, ""});
    add_guards();
    for (const Taken& taken : taken_) {
      const TensorId now = contents_.read(taken.storage, taken.base);
      if (now == b_.graph().inputs[taken.input].tensor || kind_of(taken) == InputKind::kIncoming) continue;
      if (kind_of(taken) == InputKind::kHost && now == taken.there) continue;
      GraphOutput output;
      output.kind = GraphOutput::Kind::kUpdate;
      output.input = taken.input;
      output.tensor = now;
      b_.graph().outputs.push_back(std::move(output));
    }
    for (const Rebinding& slot : trace_.rebindings) rebind(slot);
    for (ValueId output : trace_.outputs) add_output(GraphOutput::Kind::kReturn, output);
    add_numbers();
  }

  const Trace& trace_;
  GraphBuilder b_;
  StorageContents contents_;
  RandomStreams streams_;
  std::vector<Taken> taken_;
  std::vector<bool> on_host_;                // by call
  std::vector<const HostEvent*> event_of_;   // by call
  std::map<CallId, TensorId> numbers_;       // what host reads read
  std::map<std::string, TensorId> scalars_;  // numbers that the host supplies, as they are from here on
  std::set<StorageId> changed_by_host_;      // made by the step
  std::vector<TensorId> extra_;
  std::map<GeneratorId, TensorId> rngs_;
};

}  // namespace

Graph functionalise(const Trace& trace) { return Functionaliser(trace).run().graph; }
CallGraph functionalise_calls(const Trace& trace) { return Functionaliser(trace).run(); }

}  // namespace stepc
