#include "capture/recorder.h"

#include <memory>

#include "aten/cpu_hook.h"
#include "base/check.h"
#include "capture/observer.h"
#include "capture/recording_state.h"

namespace stepc {

namespace {
RecordingState* current_recording() { return dynamic_cast<RecordingState*>(current_observer()); }
}  // namespace

void install_recorder() {
  install_observer();
  install_cpu_hook();
}

bool is_recording() { return current_recording() != nullptr; }

Recording record(RecordedProgram& program, const std::function<StepOutput()>& step) {
  install_recorder();
  USER_CHECK(current_observer() == nullptr,
             "an accelerated step is called inside another one that is being recorded: accelerate the outer step only");
  const auto state = std::make_shared<RecordingState>(program);
  StepOutput output;
  {
    const AllocationScope allocations(state->log(), /*watch_frees=*/true);
    const ObserverScope scope(state);
    output = step();
    // Detached, so that the autograd graph of a returned loss does not keep the step's memory.
    for (at::Tensor& tensor : output.tensors)
      if (tensor.defined()) tensor = tensor.detach();
    state->finish(output);
  }
  return state->take(std::move(output));
}

HostEventScope::HostEventScope(std::string key) {
  if (RecordingState* recording = current_recording()) recording->begin_event(std::move(key));
}
HostEventScope::~HostEventScope() {
  if (RecordingState* recording = current_recording()) recording->end_event();
}

void report_obstacle(const std::string& reason) {
  if (RecordingState* recording = current_recording()) recording->obstacle(reason);
}

}  // namespace stepc
