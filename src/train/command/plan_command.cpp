#include "train/command/plan_command.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <optional>
#include <utility>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text.h"
#include "cost/cluster.h"
#include "plan/search.h"
#include "plan/search_text.h"
#include "train/model/adapter_choice.h"
#include "train/model/model_directory.h"
#include "train/report/progress.h"
#include "train/report/search_page.h"
#include "train/step/search_run.h"

namespace stepc::train {

namespace {

SearchPins pins_of(const PlanCommand& command, const RunConfig::Parallel& parallel) {
  SearchPins pins = search_pins(parallel);
  const std::optional<int64_t> named = std::exchange(pins.pp, std::nullopt);  // --pin counts before it
  const std::vector<std::pair<std::string, std::optional<int64_t>*>> places = {{"pp", &pins.pp},
                                                                               {"dp_replicate", &pins.dp_replicate},
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
  if (!pins.pp) pins.pp = named;
  return pins;
}

// One combination of the requested options.
struct Question {
  RunConfig config;
  Cluster cluster;
};

Cluster with_memory(Cluster cluster, const std::string& text) {
  const std::optional<uint64_t> bytes = parse_bytes(text);
  USER_CHECK(bytes && *bytes > 0 && *bytes <= static_cast<uint64_t>(INT64_MAX),
             "--budget {}: must be a size such as 40GiB", in_quotes(text));
  const auto signed_bytes = static_cast<int64_t>(*bytes);
  (cluster.target.gpu ? cluster.target.gpu->memory_bytes : cluster.cpu_memory_bytes) = signed_bytes;
  return cluster;
}

std::vector<Question> questions_of(const RunConfig& config, const PlanCommand& command) {
  std::vector<Question> all;
  for (const std::string& name : command.clusters) all.push_back({config, named_cluster(name)});
  const auto each = [&](const auto& values, const auto& with) {
    if (values.empty()) return;
    std::vector<Question> more;
    for (const Question& one : all)
      for (const auto& value : values) {
        more.push_back(one);
        with(more.back(), value);
      }
    all = std::move(more);
  };
  each(command.tokens, [](Question& one, int64_t tokens) {
    one.config.data.seq_len = tokens;
    one.config.data.buckets.clear();
  });
  each(command.rows, [](Question& one, int64_t rows) {
    one.config.train.batch_size = rows;
    one.config.train.micro_batches = 1;
  });
  each(command.computes, [](Question& one, const std::string& compute) {
    const bool is_fp8 = compute == "fp8";  // beside the compute that the run has
    one.config.train.precision = is_fp8 ? compute : "model";
    if (!is_fp8) one.config.model.compute = compute;
  });
  each(command.memories,
       [](Question& one, const std::string& text) { one.cluster = with_memory(std::move(one.cluster), text); });
  return all;
}

std::string json_of(const std::vector<SearchAnswer>& answers) {
  std::string text;
  for (const auto& [subject, cluster, result] : answers)
    text += str("{}{}", text.empty() ? "" : ",", to_json(result, subject, cluster));
  return answers.size() == 1 ? text : str("[{}]\n", text);
}

}  // namespace

int run_plan(const RunConfig& config, const PlanCommand& command) {
  const std::vector<Question> questions = questions_of(config, command);
  const models::DecoderConfig shape = read_model_config(config.model.path);
  for (const Question& one : questions)
    USER_CHECK(one.config.data.longest_row() <= shape.max_position_embeddings,
               "data.seq_len = {}: the model has {} positions", one.config.data.longest_row(),
               shape.max_position_embeddings);
  Progress progress = progress_on_terminal(stderr);
  std::vector<SearchAnswer> answers;
  for (const auto& [asked, cluster] : questions) {
    std::string what = str("searching for {}", cluster.name);
    if (questions.size() > 1) what += str(", {} of {}", answers.size() + 1, questions.size());
    Progress::Phase phase(progress, what);
    SearchOptions options;
    options.pins = pins_of(command, asked.parallel);
    options.top = command.top;
    options.most_plans = command.most_plans;
    options.without = command.without;
    options.progress = [&](size_t done, size_t all) { phase.update(str("{} of {} ways", done, all)); };
    SearchResult result =
        search(search_model(asked, shape, adapter_of(asked.lora), command.document_tokens), cluster, options);
    answers.push_back({search_subject(asked, shape), cluster, std::move(result)});
  }
  const auto& [subject, cluster, result] = answers.front();
  std::fputs((answers.size() > 1 ? to_table(answers) : to_text(result, subject, cluster, command.top)).c_str(), stdout);
  if (!command.json.empty()) {
    write_file_synced(command.json, json_of(answers));
    std::printf("all ways: %s\n", command.json.c_str());
  }
  if (!command.html.empty()) {
    write_file_synced(command.html, search_page(result, subject, cluster, command.top));
    std::printf("as a page: %s\n", command.html.c_str());
  }
  return std::ranges::all_of(answers, [](const SearchAnswer& one) { return one.result.best() != nullptr; }) ? 0 : 1;
}

}  // namespace stepc::train
