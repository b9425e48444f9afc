// What one run.toml says, as a plain value. Defaults stand here and nowhere else; names, bounds and help of every key
// are the table in run_config_keys.h.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "comm/launch.h"
#include "passes/fp8.h"
#include "passes/partition/strategy.h"

namespace stepc::train {

struct RunConfig {
  struct Model {
    std::string path;
    std::string compute = "bfloat16";
  } model;
  struct Lora {
    int64_t rank = 0;
    double alpha = 16;
    double dropout = 0;
    std::vector<std::string> targets = {"all-linear"};
  } lora;
  struct Data {
    std::vector<std::string> train;
    std::vector<double> weights;
    std::string field = "text";
    std::string chat = "model";
    bool skip_unusable = false;
    std::vector<std::string> eval;
    double eval_fraction = 0.02;
    int64_t eval_windows = 64;
    int64_t seq_len = 256;
    std::vector<int64_t> buckets;
    std::string cache;

    // Tokens.
    [[nodiscard]] int64_t longest_row() const { return buckets.empty() ? seq_len : buckets.back(); }
  } data;
  struct Train {
    int64_t steps = 1000;
    int64_t batch_size = 8;
    int64_t micro_batches = 1;
    int64_t seed = 1;
    int64_t threads = 0;
    std::string device = "auto";
    bool device_kernels = false;
    std::string mode = "fast";
    std::string precision = "model";
    std::string fp8_recipe = "tensorwise";
    std::string capture = "virtual";
    std::string verify = "first";

    // Of linear layers; none: they multiply as the model does.
    [[nodiscard]] std::optional<Fp8Recipe> fp8() const {
      return precision == "fp8" ? fp8_recipe_from_name(fp8_recipe) : std::nullopt;
    }
  } train;
  struct Memory {
    std::string budget = "none";
  } memory;
  struct Parallel {
    int64_t ranks = 0;
    std::string strategy = "given";
    std::string cluster = {};
    int64_t pp = 1;
    int64_t chunks = 1;
    std::string order = "1f1b";
    std::vector<std::string> stages = {};
    int64_t dp_replicate = 1;
    int64_t dp_shard = 1;
    int64_t zero = 3;
    int64_t cp = 1;
    int64_t tp = 1;
    bool sequence_parallel = true;
    std::string context = "auto";
    std::string reduce = "float32";
    bool overlap = false;
    std::vector<ShardRule> shard = {};
  } parallel;
  struct Elastic {
    double stall_seconds = kStallSeconds;
    int64_t check_every = 0;
    int64_t snapshot_every = 0;
    int64_t snapshot_copies = 1;
    double rejoin_seconds = 0;
  } elastic;
  struct Optim {
    std::string name = "adamw";
    double lr = 1e-3;
    std::string schedule = "cosine";
    double min_lr_ratio = 0.1;
    int64_t warmup_steps = 100;
    double decay_fraction = 0.2;
    double weight_decay = 0.1;
    bool decay_embeddings = true;
    double clip = 1.0;
    std::array<double, 2> betas = {0.9, 0.95};
    double eps = 1e-8;
    double momentum = 0.9;
    bool nesterov = false;
    double agd_delta = 1e-14;
    double wsam_rho = 0.05;
    double wsam_gamma = 0.9;
    bool master_weights = true;
  } optim;
  struct Output {
    std::string dir;
    int64_t save_every = 500;
    int64_t keep_last = 2;
    int64_t keep_every = 0;
    bool keep_best = false;
    double max_shard_gb = 5;
    int64_t log_every = 10;
    int64_t eval_every = 0;
    int64_t sample_tokens = 200;
  } output;
  // The keys that the file or the command line gives, "parallel.tp": strategy = "auto" changes none of them.
  std::set<std::string> given;
};

// `--section.key=value`, as given on the command line.
struct Override {
  std::string key;
  std::string value;
};

// Reads the TOML file, then the overrides. Strict: an unknown key, a wrong type, a value out of range or a missing
// required key is a UserError of one line that names the file, the line, the key, the value and what is allowed.
// `is_saved`: a checkpoint's, which may be of a version that named some keys otherwise.
RunConfig load_run_config(const std::string& path, const std::vector<Override>& overrides, bool is_saved = false);

}  // namespace stepc::train
