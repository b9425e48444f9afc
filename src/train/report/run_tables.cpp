#include "train/report/run_tables.h"

#include <algorithm>
#include <cmath>

#include <fmt/ranges.h>

#include "base/text.h"
#include "cost/profile.h"

namespace stepc::train {
namespace {

std::string row(const char* name, const std::string& text) { return str("  {:<11} {}\n", name, text); }

// "134 GFLOP", "1.40 TFLOP".
std::string human_flops(double flops) {
  constexpr double kGiga = 1e9;
  constexpr double kTera = 1e12;
  if (flops < kTera) return str("{:.3g} GFLOP", flops / kGiga);
  return str("{:.3g} TFLOP", flops / kTera);
}

std::string plural(int64_t count, const char* noun) { return str("{} {}{}", count, noun, count == 1 ? "" : "s"); }

}  // namespace

RunNumbers derive_numbers(const RunConfig& config, const models::DecoderConfig& model, const Corpus& corpus,
                          const RunRate& rate, int64_t ranks) {
  RunNumbers numbers;
  numbers.parameters = model.parameter_count();
  numbers.samples_per_step = config.train.batch_size * config.train.micro_batches;
  const double row_tokens = corpus.mixture().mean_tokens();
  numbers.tokens_per_step = std::llround(static_cast<double>(numbers.samples_per_step) * row_tokens);
  numbers.tokens = numbers.tokens_per_step * config.train.steps;
  const auto samples = static_cast<uint64_t>(numbers.samples_per_step * config.train.steps);
  for (size_t i = 0; i < corpus.sources(); ++i)
    numbers.epochs = std::max(numbers.epochs, corpus.mixture().epochs(i, samples));
  numbers.flops_per_step =
      model.train_flops_per_token(std::llround(row_tokens)) * static_cast<double>(numbers.tokens_per_step);
  // Frozen weights need no gradients: four operations for each weight and token instead of six.
  if (config.lora.rank > 0) numbers.flops_per_step *= 2.0 / 3.0;
  numbers.matmul_flops_rate = rate.measured * static_cast<double>(ranks);
  numbers.default_flops_rate = rate.by_default * static_cast<double>(ranks);
  numbers.least_step_seconds = numbers.flops_per_step / numbers.matmul_flops_rate;
  return numbers;
}

void RunNumbers::note_step(double seconds) {
  if (seconds <= 0 || seconds >= least_step_seconds) return;
  matmul_flops_rate = flops_per_step / seconds;
  least_step_seconds = seconds;
  rate_is_of_a_step = true;
}

double RunNumbers::mfu(double step_seconds) const {
  return step_seconds > 0 ? std::min(1.0, least_step_seconds / step_seconds) : 1.0;
}

Prediction RunNumbers::told(Prediction prediction) const {
  if (prediction.is_of_card) return prediction;
  if (!prediction.is_calibrated && default_flops_rate > 0) {
    prediction.seconds *= default_flops_rate / matmul_flops_rate;
    prediction.is_scaled = true;
  }
  prediction.seconds = std::max(prediction.seconds, least_step_seconds);
  return prediction;
}

std::string step_time_text(const RunNumbers& numbers, const std::optional<Prediction>& prediction) {
  const std::string least = str("at least {}", time_text(numbers.least_step_seconds));
  if (!prediction) return str("{} a step: every FLOP at the rate of a large matmul", least);
  const Prediction told = numbers.told(*prediction);
  return str("predicted: {} a step, {}; {}", time_text(told.seconds), least, source_of(told));
}

std::string start_table(const RunConfig& config, const models::DecoderConfig& model, const Corpus& corpus,
                        const RunNumbers& numbers) {
  std::string text;
  text += row("model", str("{}: {} parameters, {} layers, hidden size {}, vocabulary {}", config.model.path,
                           human_count(static_cast<double>(numbers.parameters)), model.num_hidden_layers,
                           model.hidden_size, model.vocab_size));
  if (config.lora.rank > 0)
    text += row("adapter", str("rank {}, alpha {:g}, dropout {:g}, on {}", config.lora.rank, config.lora.alpha,
                               config.lora.dropout, fmt::join(config.lora.targets, ", ")));
  text += row("compute", str("{}, {}, {}, mode {}", config.model.compute,
                             config.optim.master_weights ? "updates in float32" : "stochastic rounding",
                             plural(config.train.threads, "thread"), config.train.mode));
  text += row("data", str("{}, {}, {}: {} tokens, {} training and {} held-out {}",
                          plural(static_cast<int64_t>(corpus.files()), "file"), human_bytes(corpus.text_bytes()),
                          plural(static_cast<int64_t>(corpus.documents()), "document"),
                          human_count(static_cast<double>(corpus.tokens())), corpus.train_windows(),
                          corpus.held_out_windows(), config.data.buckets.empty() ? "windows" : "rows"));
  if (corpus.sources() > 1) {
    const auto samples = static_cast<uint64_t>(numbers.samples_per_step * config.train.steps);
    for (size_t i = 0; i < corpus.sources(); ++i)
      text += row("", str("{}: weight {:g}, {:.2f} epochs", config.data.train.at(i), config.data.weights.at(i),
                          corpus.mixture().epochs(i, samples)));
  }
  const std::string sequences = str("{} micro-batch{} x {} sequences", config.train.micro_batches,
                                    config.train.micro_batches == 1 ? "" : "es", config.train.batch_size);
  text += row("batch",
              config.data.buckets.empty()
                  ? str("{} x {} tokens = {} tokens a step", sequences, config.data.seq_len, numbers.tokens_per_step)
                  : str("{}, padded to {} tokens; {} tokens a step on average, padding apart", sequences,
                        fmt::join(config.data.buckets, ", "), numbers.tokens_per_step));
  text += row("steps", str("{}: {} tokens, {:.2f} epochs", config.train.steps,
                           human_count(static_cast<double>(numbers.tokens)), numbers.epochs));
  const double last_lr =
      config.optim.schedule == "constant" ? config.optim.lr : config.optim.lr * config.optim.min_lr_ratio;
  text += row("optimizer", str("{}, lr {:.2e} after {} warm-up steps, {} to {:.2e}, weight decay {:g}, clip {:g}",
                               config.optim.name, config.optim.lr, config.optim.warmup_steps, config.optim.schedule,
                               last_lr, config.optim.weight_decay, config.optim.clip));
  text += row("FLOPs", str("{} a step; large matrices are multiplied at {}/s", human_flops(numbers.flops_per_step),
                           human_flops(numbers.matmul_flops_rate)));
  text += row("output", config.output.dir);
  return text;
}

std::string end_table(const EndOfRun& end, const RunNumbers& numbers) {
  const auto seconds = [](double value) { return value > 0 ? str("{:.3f} s", value) : std::string("-"); };
  const std::string mfu =
      end.step_seconds > 0 ? str(", MFU {:.0f} %", 100 * numbers.mfu(end.step_seconds)) : std::string();
  const char* measure =
      numbers.rate_is_of_a_step ? "the fastest step, above the matmul rate" : "every FLOP at the matmul rate";
  std::string text;
  text += "  time                          at best     measured\n";
  text += str("    step (median)       {:>12} {:>12}   at best: {}{}\n", seconds(numbers.least_step_seconds),
              seconds(end.step_seconds), measure, mfu);
  text += str("    whole run           {:>12} {:>12}   {} steps in all\n", "", human_seconds(end.seconds), end.steps);
  if (!end.held_out_after) return text;
  text += "  held-out loss                  before        after\n";
  text += str("    nats per byte       {:>12} {:>12.4f}\n",
              end.held_out_before ? str("{:.4f}", *end.held_out_before) : std::string("-"), *end.held_out_after);
  return text;
}

}  // namespace stepc::train
