#include "capture/tracer.h"

#include <algorithm>

#include "aten/constants.h"
#include "aten/operators.h"
#include "capture/tracing/trace_observer.h"

namespace stepc {

std::vector<HostSupply> numbers_supplied(const Trace& trace, const Trace& recorded, size_t end) {
  std::vector<HostSupply> out;
  for (const HostEvent& event : trace.events) {
    if (event.kind == HostEvent::Kind::kRead || event.end.index() > end) continue;
    for (size_t c = event.begin.index(); c < event.end.index(); ++c) {
      const Call& call = recorded.calls.at(c);
      const auto& schema = find_operator(call.op).schema().arguments();
      for (size_t a = 0; a < call.args.size(); ++a) {
        if (!is_any_number(call.args[a])) continue;
        const auto* wrapped = std::get_if<WrappedNumber>(&call.args[a]);
        out.push_back({CallId(c), a,
                       wrapped ? c10::IValue(tensor_of(*wrapped)) : constant_to_ivalue(call.args[a], schema.at(a))});
      }
    }
  }
  return out;
}

bool are_other_choices(const Arg& one, const Arg& other) {
  return one.index() == other.index() && !(one == other) &&
         (std::holds_alternative<bool>(one) || std::holds_alternative<int64_t>(one));
}

std::string place_of_read(const Trace& trace, CallId call) {
  const auto read = std::ranges::find(trace.reads, call, &HostRead::call);
  return read == trace.reads.end() || read->source.empty() ? "in the step" : "at " + read->source;
}

Tracer::Tracer(const Trace& trace) : observer_(std::make_shared<Observer>(trace)) {}
Tracer::~Tracer() = default;

void Tracer::bind(const std::vector<at::Tensor>& externals, std::vector<at::Generator> generators) {
  observer_->bind(externals, std::move(generators));
}
void Tracer::release() { observer_->release(); }

void Tracer::begin(const Callbacks& callbacks, bool computes) { observer_->begin(&callbacks, computes); }

void Tracer::run(const std::function<void()>& part) {
  try {
    const ObserverScope scope(observer_);
    part();
  } catch (...) {
    observer_->stop();
    throw;
  }
}

void Tracer::pause(const std::vector<at::Tensor>& outputs, int64_t structure) { observer_->pause(outputs, structure); }
void Tracer::resume(const std::vector<at::Tensor>& incoming) { observer_->resume(incoming); }
void Tracer::end() { observer_->end(); }
size_t Tracer::pause_event() const { return observer_->pause_event(); }

const Departure& Tracer::departure() const { return observer_->departure(); }
const std::map<size_t, Arg>& Tracer::numbers() const { return observer_->numbers(); }
const std::map<std::string, at::Tensor>& Tracer::host_data() const { return observer_->host_data(); }
const std::vector<HostSupply>& Tracer::supplied() const { return observer_->supplied(); }
bool Tracer::is_held(ValueId value) const { return value.valid() && observer_->is_held(observer_->storage_of(value)); }
ValueId Tracer::held_beside(const std::vector<ValueId>& given) const { return observer_->held_beside(given); }
at::Tensor Tracer::held(ValueId value) const { return is_held(value) ? observer_->held(value) : at::Tensor(); }
void Tracer::give(ValueId value, const at::Tensor& result) {
  if (value.valid()) observer_->give(value, result);
}
void Tracer::leave(const Callbacks& callbacks, const std::string& why, bool records) {
  observer_->leave(&callbacks, why, records);
}

void leave_trace(const std::string& why) {
  if (auto* observer = dynamic_cast<Tracer::Observer*>(current_observer())) observer->leave(nullptr, why, false);
}
bool is_tracing() {
  const auto* observer = dynamic_cast<Tracer::Observer*>(current_observer());
  return observer != nullptr && observer->is_compared();
}
bool show_memory(const at::Tensor& tensor, const void* values) {
  auto* observer = dynamic_cast<Tracer::Observer*>(current_observer());
  return observer == nullptr || observer->show(tensor, values);
}
void hide_memory(const at::Tensor& tensor) {
  if (auto* observer = dynamic_cast<Tracer::Observer*>(current_observer())) observer->hide(tensor);
}

}  // namespace stepc
