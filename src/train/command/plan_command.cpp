#include "train/command/plan_command.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <utility>

#include <fmt/ranges.h>

#include <ATen/Functions.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "capture/virtual/virtual_region.h"
#include "cost/cluster.h"
#include "passes/from_trace/functionalise.h"
#include "plan/search.h"
#include "plan/search_text.h"
#include "train/config/parallel.h"
#include "train/model/model_directory.h"
#include "train/report/progress.h"
#include "train/step/rank_plan.h"

namespace stepc::train {

namespace {

// Rows of one document each, of tokens that nobody reads.
Batch made_up_batch(int64_t micro_batches, int64_t rows, int64_t tokens) {
  const auto zeros = [&] { return at::zeros({micro_batches, rows, tokens}, at::kLong); };
  return {zeros(), zeros(), {}};
}

std::vector<SearchPart> capture(RunConfig config, models::DecoderConfig shape, int64_t layers, int64_t rows,
                                int64_t micro_batches) {
  shape.num_hidden_layers = layers;
  if (!shape.sliding_layers.empty()) shape.sliding_layers.resize(static_cast<size_t>(layers));
  config.train.grad_accum = micro_batches;
  config.train.batch_size = rows;
  std::optional<VirtualRegion> region(std::in_place);
  const Batch batch = made_up_batch(micro_batches, rows, config.data.longest_row());
  region.reset();
  std::vector<SearchPart> parts;
  for (const CapturedPart& part : capture_run(config, shape, {}, batch).parts)
    parts.push_back({part.name, part.times, functionalise(part.plan.trace)});
  return parts;
}

SearchPins pins_of(const PlanCommand& command, const Strategy& base) {
  SearchPins pins;
  pins.base = base;
  pins.base.mesh = {};
  const std::vector<std::pair<std::string, std::optional<int64_t>*>> places = {{"dp_replicate", &pins.dp_replicate},
                                                                               {"dp_shard", &pins.dp_shard},
                                                                               {"cp", &pins.cp},
                                                                               {"tp", &pins.tp},
                                                                               {"zero", &pins.zero},
                                                                               {"micro_batches", &pins.micro_batches}};
  std::vector<std::string> names;
  for (const auto& [name, place] : places) names.push_back(name);
  for (const std::string& text : command.pins) {
    const size_t equal = text.find('=');
    USER_CHECK(equal != std::string::npos, "--pin {}: write what it is and how much, as in --pin tp=8",
               in_quotes(text));
    const std::string name = text.substr(0, equal);
    int64_t value = -1;
    const char* const end = text.data() + text.size();
    const auto [read, failed] = std::from_chars(text.data() + equal + 1, end, value);
    const bool is_zero = name == "zero";
    USER_CHECK(failed == std::errc() && read == end && value >= (is_zero ? 0 : 1) && (!is_zero || value <= 3),
               "--pin {}: must be a whole number, {}", in_quotes(text), is_zero ? "from 0 to 3" : "at least 1");
    const auto place = std::ranges::find(places, name, &std::pair<std::string, std::optional<int64_t>*>::first);
    if (place == places.end()) {
      const auto near = nearest(name, names);
      user_error("--pin {}: there is no {}; {}there are {}", in_quotes(text), in_quotes(name),
                 near ? str("did you mean {}? ", *near) : std::string(), fmt::join(names, ", "));
    }
    USER_CHECK(!*place->second, "--pin {}: {} is given twice", in_quotes(text), name);
    *place->second = value;
  }
  return pins;
}

}  // namespace

int run_plan(const RunConfig& config, const PlanCommand& command) {
  USER_CHECK(config.lora.rank == 0, "lora.rank = {}: stepc plan spreads the training of all weights; leave it out",
             config.lora.rank);
  std::vector<Cluster> clusters;
  for (const std::string& name : command.clusters) clusters.push_back(named_cluster(name));
  const models::DecoderConfig shape = read_model_config(config.model.path);
  const int64_t tokens = config.data.longest_row();
  USER_CHECK(tokens <= shape.max_position_embeddings, "data.seq_len = {}: the model has {} positions", tokens,
             shape.max_position_embeddings);
  RunConfig of_one_device = config;
  of_one_device.parallel = {};
  of_one_device.parallel.sequence_parallel = config.parallel.sequence_parallel;
  of_one_device.parallel.context = config.parallel.context;
  of_one_device.parallel.reduce = config.parallel.reduce;
  of_one_device.parallel.overlap = config.parallel.overlap;
  SearchOptions options;
  options.pins = pins_of(command, strategy_of(of_one_device));
  options.top = command.top;

  SearchModel model;
  model.layers = shape.num_hidden_layers;
  model.heads = shape.num_key_value_heads > 0 ? shape.num_key_value_heads : shape.num_attention_heads;
  model.tokens = tokens;
  model.rows = config.train.batch_size * config.train.grad_accum;
  model.capture = [&](int64_t layers, int64_t rows, int64_t micro_batches) {
    return capture(config, shape, layers, rows, micro_batches);
  };
  SearchSubject subject;
  subject.title = str("{} with {} parameters in {}", shape.model_type,
                      human_count(static_cast<double>(shape.parameter_count())), config.model.compute);
  subject.rows = model.rows;
  subject.overlaps = config.parallel.overlap;
  subject.tokens = tokens;
  subject.flops_per_token = shape.train_flops_per_token(tokens);
  // Of twice the tokens causal attention has as many pairs for each as full attention has of these.
  subject.full_attention_flops_per_token = shape.train_flops_per_token(2 * tokens);

  Progress progress = progress_on_terminal(stderr);
  bool has_all = true;
  for (const Cluster& cluster : clusters) {
    std::optional<Progress::Phase> phase(std::in_place, progress, str("searching for {}", cluster.name));
    options.progress = [&](size_t done, size_t all) { phase->update(str("{} of {} ways", done, all)); };
    const SearchResult result = search(model, cluster, options);
    phase.reset();
    std::fputs(to_text(result, subject, cluster, command.top).c_str(), stdout);
    if (&cluster != &clusters.back()) std::fputs("\n", stdout);
    has_all = has_all && result.best() != nullptr;
    if (!command.json.empty() && &cluster == &clusters.front())
      write_file_synced(command.json, to_json(result, subject, cluster));
  }
  if (!command.json.empty()) std::printf("all ways: %s\n", command.json.c_str());
  return has_all ? 0 : 1;
}

}  // namespace stepc::train
