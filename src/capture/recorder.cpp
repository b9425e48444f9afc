#include "capture/recorder.h"

#include <memory>

#include "aten/cpu_hook.h"
#include "base/check.h"
#include "capture/observer.h"
#include "capture/recording_state.h"

namespace stepc {

namespace {
RecordingState* current_recording() {
  CallObserver* const observer = current_observer();
  return observer == nullptr ? nullptr : observer->recording();
}
}  // namespace

void install_recorder() {
  install_observer();
  install_cpu_hook();
}

bool is_recording() { return current_recording() != nullptr; }

Recorder::Recorder(RecordedProgram& program, VirtualKernels* kernels) : program_(program) {
  install_recorder();
  USER_CHECK(current_observer() == nullptr,
             "an accelerated step is called inside another one that is being recorded: accelerate the outer step only");
  state_ = std::make_shared<RecordingState>(program, kernels);
}
Recorder::Recorder(RecordedProgram& program, std::vector<OwnedBefore> before)
    : program_(program), state_(std::make_shared<RecordingState>(program, std::move(before))) {}
Recorder::~Recorder() = default;

const std::shared_ptr<RecordingState>& Recorder::take_over() {
  allocations_ = std::make_unique<AllocationScope>(state_->log(), /*watch_frees=*/true);
  return state_;
}

void Recorder::run(const std::function<void()>& part) {
  USER_CHECK(current_observer() == nullptr,
             "an accelerated step is called inside another one that is being recorded: accelerate the outer step only");
  const AllocationScope allocations(state_->log(), /*watch_frees=*/true);
  const ObserverScope scope(state_);
  try {
    part();
  } catch (...) {
    // On its way through Python or autograd the exception may have become another type.
    if (!state_->refusal().empty()) user_error("{}", state_->refusal());
    throw;
  }
}

void Recorder::note_made() { state_->note_made(); }
void Recorder::pause(const std::vector<at::Tensor>& outputs, int64_t structure) { state_->pause(outputs, structure); }
void Recorder::resume(const std::vector<at::Tensor>& incoming) { state_->resume(incoming); }

void Recorder::stop() { allocations_.reset(); }

Recording Recorder::finish(StepOutput output) {
  stop();
  run([&] {
    // Detached, so that the autograd graph of a returned loss does not keep the step's memory.
    for (at::Tensor& tensor : output.tensors)
      if (tensor.defined()) tensor = tensor.detach();
    state_->finish(output);
  });
  Recording recording = state_->take(std::move(output));
  apply_rules(program_.op_rules(), recording.trace);
  return recording;
}

Recording record(RecordedProgram& program, const std::function<StepOutput()>& step, VirtualKernels* kernels) {
  Recorder recorder(program, kernels);
  StepOutput output;
  recorder.run([&] { output = step(); });
  return recorder.finish(std::move(output));
}

HostEventScope::HostEventScope(std::string key) {
  if (CallObserver* observer = current_observer()) observer->begin_event(key);
}
HostEventScope::~HostEventScope() {
  if (CallObserver* observer = current_observer()) observer->end_event();
}

size_t host_reads_so_far() {
  const RecordingState* recording = current_recording();
  return recording == nullptr ? 0 : recording->reads();
}

void report_comparison(size_t read) {
  if (RecordingState* recording = current_recording()) recording->read_decides(read);
}

std::vector<at::Tensor> held_tensors() {
  CallObserver* const observer = current_observer();
  return observer == nullptr ? std::vector<at::Tensor>() : observer->held();
}
void note_made(const at::Tensor& tensor) {
  if (CallObserver* const observer = current_observer()) observer->note(tensor);
}

bool has_made(const at::Tensor& tensor) {
  const RecordingState* recording = current_recording();
  return recording != nullptr && recording->has_made(tensor);
}

void report_obstacle(const std::string& reason) {
  RecordingState* const recording = current_recording();
  if (recording != nullptr && !recording->is_in_unknown()) recording->obstacle(reason);
}

void report_effect(const std::string& effect) {
  RecordingState* const recording = current_recording();
  if (recording != nullptr && !recording->is_in_unknown()) recording->effect(effect);
}

}  // namespace stepc
