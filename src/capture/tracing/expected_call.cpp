#include "capture/tracing/expected_call.h"

#include "aten/constants.h"
#include "aten/operators.h"
#include "ir/agree.h"

namespace stepc {

bool is_any_number(const Arg& arg) {
  return std::holds_alternative<int64_t>(arg) || std::holds_alternative<double>(arg) ||
         std::holds_alternative<std::complex<double>>(arg) || std::holds_alternative<WrappedNumber>(arg) ||
         std::holds_alternative<std::vector<double>>(arg);
}

std::vector<ExpectedCall> expected_calls(const Trace& trace) {
  std::vector<ExpectedCall> calls;
  for (const Call& call : trace.calls) {
    ExpectedCall one{find_operator(call.op), is_view(trace, call), makes_host_data(trace, call), false, {}, {}, {}};
    one.runs = one.runs || one.is_filled_later;
    const auto& schema = one.op.schema().arguments();
    for (size_t a = 0; a < call.args.size(); ++a) {
      const Arg& arg = call.args[a];
      const bool is_constant =
          !std::holds_alternative<ValueId>(arg) && !std::holds_alternative<std::vector<ValueId>>(arg) &&
          !std::holds_alternative<WrappedNumber>(arg) && !std::holds_alternative<GeneratorArg>(arg);
      one.constants.push_back(is_constant ? constant_to_ivalue(arg, schema.at(a)) : c10::IValue());
    }
    calls.push_back(std::move(one));
  }
  for (size_t e = 0; e < trace.events.size(); ++e) {
    const HostEvent& event = trace.events[e];
    if (event.kind != HostEvent::Kind::kRead)
      for (size_t c = event.begin.index(); c < event.end.index(); ++c) calls[c].supplied = true;
    for (CallId call : event.own_calls) calls[call.index()].runs = true;
    if (event.kind != HostEvent::Kind::kRead) continue;
    if (event.own_calls.empty()) {
      calls[event.begin.index() - 1].read = e;
    } else {
      calls[event.begin.index()].made_by_host = e;
      calls[event.begin.index()].runs = calls[event.begin.index()].is_filled_later = false;
    }
  }
  return calls;
}

}  // namespace stepc
