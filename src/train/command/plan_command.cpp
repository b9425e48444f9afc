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
#include "train/config/parallel.h"
#include "train/model/adapter_choice.h"
#include "train/model/model_directory.h"
#include "train/report/progress.h"
#include "train/report/search_page.h"
#include "train/step/search_run.h"

namespace stepc::train {

namespace {

SearchPins pins_of(const PlanCommand& command, const Strategy& base) {
  SearchPins pins;
  pins.base = base;
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
  std::vector<Cluster> clusters;
  for (const std::string& name : command.clusters) clusters.push_back(named_cluster(name));
  const models::DecoderConfig shape = read_model_config(config.model.path);
  const int64_t tokens = config.data.longest_row();
  USER_CHECK(tokens <= shape.max_position_embeddings, "data.seq_len = {}: the model has {} positions", tokens,
             shape.max_position_embeddings);
  SearchOptions options;
  options.pins = pins_of(command, without_mesh(config.parallel));
  options.top = command.top;
  const SearchModel model = search_model(config, shape, adapter_of(config.lora));
  const SearchSubject subject = search_subject(config, shape);

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
    if (!command.html.empty() && &cluster == &clusters.front())
      write_file_synced(command.html, search_page(result, subject, cluster, command.top));
  }
  if (!command.json.empty()) std::printf("all ways: %s\n", command.json.c_str());
  if (!command.html.empty()) std::printf("as a page: %s\n", command.html.c_str());
  return has_all ? 0 : 1;
}

}  // namespace stepc::train
