// The stepc runner of the benchmark: the same Llama step as benchmarks/torch_runner.py, through stepc::accelerate.
//
//   stepc_runner accelerate|paired PRESET PRECISION BATCH SEQ THREADS      PRECISION: f32, bf16 or autocast
//   stepc_runner config PRESET                                             prints the model's config.json
//
// `paired` holds two models and runs each step twice, eagerly on one and accelerated on the other, so that both see the
// same machine. Speaks the line protocol of benchmarks/README.md on stdin and stdout.
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>
#include <unistd.h>

#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/utils.h>

#include "aten/cpu_hook.h"
#include "base/check.h"
#include "base/machine_memory.h"
#include "engine/stepc.h"
#include "models/decoder.h"
#include "models/decoder_config.h"
#include "optim/adamw.h"
#include "optim/clip.h"

namespace {

using nlohmann::json;

constexpr int64_t kBatches = 8;
constexpr double kLearningRate = 1e-4;
constexpr double kMaxNorm = 1.0;

// Answers go to what was stdout; whatever the libraries print goes to the log.
class Answers {
 public:
  Answers() : file_(::fdopen(::dup(STDOUT_FILENO), "w")) {
    INTERNAL_CHECK(file_ != nullptr && ::dup2(STDERR_FILENO, STDOUT_FILENO) >= 0, "cannot redirect stdout");
  }
  void send(const json& answer) {
    std::fprintf(file_, "%s\n", answer.dump().c_str());
    std::fflush(file_);
  }

 private:
  std::FILE* file_;
};

stepc::Config captured_virtually() {
  stepc::Config config;
  config.capture = stepc::Capture::kVirtual;
  return config;
}

// Seconds of the monotonic clock, which all processes of a machine share.
double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

class AutocastScope {
 public:
  explicit AutocastScope(bool enabled) : before_(at::autocast::is_autocast_enabled(at::kCPU)) {
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~AutocastScope() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, before_);
  }
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  bool before_;
};

struct Task {
  std::string preset;
  std::string precision;
  int64_t batch = 0;
  int64_t seq = 0;
};

// A model, its optimizer and the training step over them, as a user would write it.
class Trainer {
 public:
  explicit Trainer(const Task& task)
      : model_(stepc::models::DecoderConfig::preset(task.preset),
               task.precision == "bf16" ? at::kBFloat16 : at::kFloat),
        autocast_(task.precision == "autocast") {
    model_->initialize(0);
    stepc::optim::AdamWOptions options;
    options.lr = kLearningRate;
    options.rules.low_precision = stepc::optim::LowPrecision::kRounded;  // what torch.optim.AdamW does
    optimizer_ = std::make_shared<stepc::optim::AdamW>(model_->persistent_state(), options);
  }

  at::Tensor step(const at::Tensor& batch) {  // batch: (ids and labels, batch, seq)
    at::Tensor loss;
    {
      const AutocastScope autocast(autocast_);
      loss = model_->loss(batch[0], batch[1]);
    }
    loss.backward();
    stepc::optim::clip_grad_norm_(model_->parameters(), kMaxNorm);
    optimizer_->step();
    optimizer_->zero_grad();
    return loss.detach();
  }

  stepc::models::Decoder& model() { return model_; }
  std::shared_ptr<stepc::optim::AdamW>& optimizer() { return optimizer_; }

 private:
  stepc::models::Decoder model_;
  std::shared_ptr<stepc::optim::AdamW> optimizer_;
  bool autocast_;
};

// Random tokens; labels are the next token, and nothing at the last position.
std::vector<at::Tensor> make_batches(const Task& task) {
  torch::manual_seed(0);
  const int64_t vocab = stepc::models::DecoderConfig::preset(task.preset).vocab_size;
  std::vector<at::Tensor> batches;
  for (int64_t i = 0; i < kBatches; ++i) {
    const at::Tensor ids = torch::randint(vocab, {task.batch, task.seq}, at::kLong);
    const at::Tensor labels = at::constant_pad_nd(ids.slice(1, 1), {0, 1}, -100);
    batches.push_back(at::stack({ids, labels}));
  }
  return batches;
}

class Runner {
 public:
  Runner(const Task& task, bool paired, Answers& answers)
      : answers_(answers),
        batches_(make_batches(task)),
        trainer_(task),
        step_(stepc::accelerate(std::function([this](const at::Tensor& batch) { return trainer_.step(batch); }),
                                {trainer_.model()}, {trainer_.optimizer()}, captured_virtually())) {
    if (paired) eager_ = std::make_unique<Trainer>(task);
    step_.capture(batches_[0]);
    stepc::release_free_memory();
    loaded_bytes_ = stepc::resident_process_bytes();
  }

  void run(int64_t count) {
    std::vector<double> seconds;
    std::vector<double> eager_seconds;
    at::Tensor loss;
    for (int64_t i = 0; i < count; ++i, ++steps_) {
      const at::Tensor& batch = batches_[static_cast<size_t>(steps_ % kBatches)];
      const auto run_eager = [&] {
        const double begin = now();
        eager_->step(batch);
        eager_seconds.push_back(now() - begin);
      };
      const bool eager_first = steps_ % 2 == 0;  // neither of the two always finds the caches as the other left them
      if (eager_ && eager_first) run_eager();
      const double begin = now();
      loss = step_(batch);
      seconds.push_back(now() - begin);
      if (eager_ && !eager_first) run_eager();
    }
    json answer = {{"seconds", seconds},
                   {"finished_at", now()},
                   {"replaying", step_.stats().replays >= 2},  // the first one may be verified
                   {"loss", loss.item<double>()}};
    if (eager_) answer["eager_seconds"] = eager_seconds;
    answers_.send(answer);
  }

  void memory() {
    const stepc::Stats& stats = step_.stats();
    answers_.send({{"peak_rss_bytes", stepc::peak_process_bytes()},
                   {"steady_rss_bytes", stepc::resident_process_bytes()},
                   {"loaded_rss_bytes", loaded_bytes_},
                   {"promised_rss_bytes", loaded_bytes_ + stats.planned_peak_bytes},
                   {"state_bytes", stats.state_bytes},
                   {"planned_peak_bytes", stats.state_bytes + stats.planned_peak_bytes},
                   {"measured_peak_bytes", stats.state_bytes + stats.measured_peak_bytes},
                   {"eager_peak_bytes", stats.state_bytes + stats.eager_peak_bytes},
                   {"verification_bytes", stats.verification_bytes},
                   {"arena_bytes", stats.arena_bytes},
                   {"capture_seconds", stats.capture_seconds},
                   {"planning_seconds", stats.planning_seconds},
                   {"verify_seconds", stats.verify_seconds},
                   {"nodes", stats.nodes}});
  }

 private:
  Answers& answers_;
  std::vector<at::Tensor> batches_;
  Trainer trainer_;
  std::unique_ptr<Trainer> eager_;
  uint64_t loaded_bytes_ = 0;  // resident before the first step, which is planned by then
  stepc::Accelerated<std::function<at::Tensor(const at::Tensor&)>> step_;
  int64_t steps_ = 0;
};

void serve(Runner& runner) {
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command;
    int64_t count = 0;
    words >> command;
    if (command == "run" && words >> count && count > 0) {
      runner.run(count);
    } else if (command == "memory") {
      runner.memory();
    } else if (command == "quit") {
      return;
    } else {
      stepc::user_error("unknown command: '{}'", line);
    }
  }
}

int run_main(const std::vector<std::string>& arguments) {
  if (arguments.size() == 2 && arguments[0] == "config") {
    std::fputs(stepc::models::DecoderConfig::preset(arguments[1]).to_json().c_str(), stdout);
    return 0;
  }
  constexpr size_t kArguments = 6;
  USER_CHECK(arguments.size() == kArguments && (arguments[0] == "accelerate" || arguments[0] == "paired"),
             "usage: stepc_runner accelerate|paired PRESET PRECISION BATCH SEQ THREADS, or stepc_runner config PRESET");
  Answers answers;
  answers.send({{"imported_at", now()}});
  at::set_num_threads(std::stoi(arguments[5]));
  const Task task{arguments[1], arguments[2], std::stoll(arguments[3]), std::stoll(arguments[4])};
  Runner runner(task, arguments[0] == "paired", answers);
  serve(runner);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run_main({argv + 1, argv + argc});
  } catch (const stepc::UserError& error) {
    std::fprintf(stderr, "stepc_runner: %s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "stepc_runner: %s\n", error.what());
    return 1;
  }
}
