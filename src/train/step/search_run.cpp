#include "train/step/search_run.h"

#include <algorithm>
#include <utility>

#include <ATen/Functions.h>

#include "base/text.h"
#include "capture/virtual/virtual_region.h"
#include "passes/from_trace/functionalise.h"
#include "train/config/parallel.h"
#include "train/step/capture_run.h"

namespace stepc::train {

namespace {

// A batch of arbitrary tokens, in rows of one document each or of several.
Batch made_up_batch(int64_t rows, int64_t tokens, bool packs_documents) {
  const VirtualRegion shapes_alone;
  const auto zeros = [&] { return at::zeros({1, rows, tokens}, at::kLong); };
  return {zeros(), zeros(), packs_documents ? zeros() : at::Tensor()};
}

Graph capture(RunConfig config, models::DecoderConfig shape, const std::optional<models::LoraConfig>& adapter,
              bool packs_documents, int64_t layers, bool is_cut) {
  shape.num_hidden_layers = layers;
  if (!shape.sliding_layers.empty()) shape.sliding_layers.resize(static_cast<size_t>(layers));
  const int64_t rows = config.train.batch_size * config.train.micro_batches;
  config.train.micro_batches = is_cut ? std::max<int64_t>(rows, 2) : 1;  // how many there are makes no difference
  const Batch batch = made_up_batch(rows, config.data.longest_row(), packs_documents);
  return functionalise(capture_run(config, shape, adapter, batch.all_rows()).step.trace);
}

}  // namespace

SearchModel search_model(const RunConfig& config, const models::DecoderConfig& shape,
                         const std::optional<models::LoraConfig>& adapter, std::optional<double> document_tokens) {
  SearchModel model;
  model.document_tokens = document_tokens;
  model.fp8 = config.train.fp8();
  model.layers = shape.num_hidden_layers;
  model.heads = shape.num_key_value_heads > 0 ? shape.num_key_value_heads : shape.num_attention_heads;
  model.tokens = config.data.longest_row();
  model.rows = config.train.batch_size * config.train.micro_batches;
  model.most_stages = config.optim.name == "wsam" ? 1 : model.layers;  // of a step of one gradient
  model.capture = [=](int64_t layers, bool is_cut) {
    return capture(config, shape, adapter, document_tokens.has_value(), layers, is_cut);
  };
  return model;
}

SearchPins search_pins(const RunConfig::Parallel& parallel) {
  SearchPins pins;
  pins.order = parallel.order;
  pins.chunks = parallel.chunks;
  pins.base = without_mesh(parallel);
  if (!parallel.stages.empty()) pins.pp = std::ssize(parallel.stages) / chunks_of(pins);
  return pins;
}

SearchSubject search_subject(const RunConfig& config, const models::DecoderConfig& shape) {
  const int64_t tokens = config.data.longest_row();
  SearchSubject subject;
  subject.title = str("{} with {} parameters in {}", shape.model_type,
                      human_count(static_cast<double>(shape.parameter_count())), config.model.compute);
  if (config.lora.rank > 0) subject.title += str(", adapters of rank {}", config.lora.rank);
  subject.compute = config.model.compute;
  if (config.train.fp8()) {
    subject.title += ", linear layers in float8";
    subject.compute = config.train.precision;
  }
  subject.rows = config.train.batch_size * config.train.micro_batches;
  subject.overlaps = config.parallel.overlap;
  subject.tokens = tokens;
  subject.flops_per_token = shape.train_flops_per_token(tokens);
  // Causal attention over twice as many tokens has as many pairs for each token as full attention has over these.
  subject.full_attention_flops_per_token = shape.train_flops_per_token(2 * tokens);
  return subject;
}

}  // namespace stepc::train
