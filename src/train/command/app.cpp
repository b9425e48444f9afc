#include "train/command/app.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <c10/util/Exception.h>

#include "base/check.h"
#include "base/text.h"
#include "comm/ranks.h"
#include "cost/named_target.h"
#include "train/command/blame.h"
#include "train/command/commands.h"
#include "train/command/completions.h"
#include "train/command/data_command.h"
#include "train/command/local_ranks.h"
#include "train/command/memory_command.h"
#include "train/command/plan_command.h"
#include "train/command/restarted_ranks.h"
#include "train/command/run_schedule.h"
#include "train/config/run_config_keys.h"
#include "train/report/progress.h"
#include "train/run/run_directory.h"
#include "train/run/trainer.h"

namespace stepc::train {
namespace {

constexpr const char* kVersion = "stepc 0.1.0";
constexpr int kMostLocalRanks = 1024;
constexpr int kMostRestarts = 1'000'000;

// The first line without control characters: an error is one line, whatever its source.
std::string one_line(std::string_view text) {
  std::string line(text.substr(0, text.find('\n')));
  std::erase_if(line, [](char c) { return c >= 0 && c < ' '; });
  return line;
}

// Writes the error file for torchrun's agent, which shows the file of the rank that failed first. The agent fails on a
// file that it cannot parse, and may stop this rank at any moment, so the file is written whole or not at all.
void write_error_file(const std::string& line) {
  const char* file = std::getenv("TORCHELASTIC_ERROR_FILE");
  if (file == nullptr) return;
  const nlohmann::json extra = {{"py_callstack", line}, {"timestamp", str("{}", std::time(nullptr))}};
  const std::filesystem::path partial = str("{}.partial", file);
  std::ofstream out(partial);
  out << nlohmann::json{{"message", {{"message", line}, {"extraInfo", extra}}}}.dump();
  out.close();
  std::error_code ignored;
  if (out.good())
    std::filesystem::rename(partial, file, ignored);
  else
    std::filesystem::remove(partial, ignored);
}

int fail(int code, std::string_view text) {
  write_error_file(one_line(text));
  std::fputs(("stepc: " + one_line(text) + "\n").c_str(), stderr);
  return code;
}

// The overrides `--section.key=value`, which CLI11 leaves over.
std::vector<Override> overrides_of(const CLI::App& command) {
  std::vector<Override> overrides;
  for (const std::string& argument : command.remaining()) {
    const size_t equals = argument.find('=');
    const bool option = argument.starts_with("--");
    USER_CHECK(option, "unexpected argument \"{}\"; `stepc {} --help` says more", argument, command.get_name());
    const bool key = argument.substr(0, equals).find('.') != std::string::npos;
    USER_CHECK(key, "unknown option {}; `stepc {} --help` says more", argument, command.get_name());
    USER_CHECK(equals != std::string::npos, "{}: give the value as {}=value", argument, argument);
    overrides.push_back({argument.substr(2, equals - 2), argument.substr(equals + 1)});
  }
  return overrides;
}

// CLI11 wraps numbers that are too large for an unsigned number; it rejects text that is no number itself.
CLI::Validator seed_range() {
  return {[](const std::string& text) {
            const size_t digits = text.starts_with('-') ? 1 : 0;
            if (text.find_first_not_of("0123456789", digits) != std::string::npos) return std::string();
            uint64_t seed = 0;
            const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
            return error == std::errc() ? std::string() : str("must be from 0 to {}, found {}", UINT64_MAX, text);
          },
          ""};
}

int print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  return 0;
}

struct Arguments {
  InitOptions init;
  std::string config;  // run.toml
  bool resume = false;
  std::string profile;  // trace-event file
  std::string verify;   // train.verify
  std::string device;   // of a step
  int ranks = 1;
  int restarts = 0;  // of ranks
  std::string model;
  PlanCommand plan;
  GenerateCommand generate;
  std::string picture;  // SVG file
  std::string target;   // a machine to plan for
  std::string inspected, blamed;
  std::string exported, export_to;
  double export_shard_gb = 5;
  RunScheduleCommand schedule;
  CalibrateCommand calibrate;
  bool config_defaults = false, config_page = false;
  std::string shell;
};

int run_config(const Arguments& arguments) {
  USER_CHECK(arguments.config_defaults || arguments.config_page,
             "give --defaults or --page; `stepc config --help` says more");
  return print(arguments.config_page ? config_page() : default_toml());
}

// A rank cannot be the launcher of others.
void refuse_inside_launch(int ranks) {
  std::vector<std::string> found;
  for (const char* name : {"RANK", "WORLD_SIZE"})
    if (const char* value = std::getenv(name)) found.push_back(str("{} = {}", name, value));
  USER_CHECK(found.empty(), "--ranks {}: this process is a rank of a launch already ({}); leave --ranks out there",
             ranks, fmt::join(found, ", "));
}

// Starts processes like this one, each of which is one rank of the run.
int train_on_ranks(const Arguments& arguments, std::vector<Override> overrides) {
  refuse_inside_launch(arguments.ranks);
  const std::string ranks = str("{}", arguments.ranks);
  for (const Override& given : overrides)
    USER_CHECK(given.key != "parallel.ranks" || given.value == ranks,
               "--ranks {} is parallel.ranks as well: leave out --parallel.ranks={}", ranks, given.value);
  overrides.push_back({"parallel.ranks", ranks});
  const RunConfig config = load_run_config(arguments.config, overrides);  // one refuses it here for all
  LocalRanks launch;
  launch.ranks = arguments.ranks;
  launch.command = {std::filesystem::read_symlink("/proc/self/exe").string(), "train", arguments.config};
  if (arguments.resume) launch.command.emplace_back("--resume");
  if (!arguments.profile.empty()) launch.command.insert(launch.command.end(), {"--profile", arguments.profile});
  for (const auto& [key, value] : overrides) launch.command.push_back(str("--{}={}", key, value));
  launch.logs = make_log_directory(config.output.dir);
  if (arguments.restarts > 0) return run_restarted_ranks(launch, arguments.restarts, config);
  return run_local_ranks(launch);
}

int run_train(const Arguments& arguments, const CLI::App& command) {
  std::vector<Override> overrides = overrides_of(command);
  if (!arguments.verify.empty()) overrides.push_back({"train.verify", arguments.verify});
  if (!arguments.device.empty()) overrides.push_back({"train.device", arguments.device});
  USER_CHECK(arguments.restarts == 0 || arguments.ranks > 1,
             "--restarts {} is of ranks: give --ranks as well, at least 2", arguments.restarts);
  if (arguments.ranks > 1) return train_on_ranks(arguments, std::move(overrides));
  return train(load_run_config(arguments.config, overrides), arguments.resume, system_files(), arguments.profile);
}

struct Command {
  CLI::App* app;
  std::function<int()> run;
};

std::vector<Command> add_commands(CLI::App& app, Arguments& arguments) {
  const auto with_run_config = [&](CLI::App* command) {
    command->add_option("config", arguments.config, "run.toml")->required();
    command->allow_extras()->footer(
        "\nEvery key of run.toml, also as --section.key=value (paths are relative to the "
        "current directory):\n\n" +
        keys_help());
    return command;
  };

  CLI::App* init = app.add_subcommand("init", "make a model directory: config, fresh weights, byte-level tokenizer");
  init->add_option("directory", arguments.init.directory, "where")->required();
  init->add_option("--preset", arguments.init.preset, "one of " + preset_list())->capture_default_str();
  init->add_option("--seed", arguments.init.seed, "of the weights")->check(seed_range())->capture_default_str();
  init->add_flag("--force", arguments.init.force, "replace the model files of a directory that is not empty");

  CLI::App* train = with_run_config(app.add_subcommand("train", "train a model: directory in, directory out"));
  train->add_flag("--resume", arguments.resume, "continue from the newest valid checkpoint in output.dir");

  train
      ->add_option(
          "--ranks", arguments.ranks,
          "run on so many processes of this machine, as [parallel] spreads the step; they share the cores, and "
          "what each says is in output.dir/logs")
      ->check(CLI::Range(1, kMostLocalRanks))
      ->capture_default_str();
  train
      ->add_option("--restarts", arguments.restarts,
                   "with --ranks: start all of them again from the newest checkpoint where one fails, at most so "
                   "often; by torchrun, which the environment's Python must have")
      ->check(CLI::Range(0, kMostRestarts))
      ->capture_default_str();
  train->add_option("--verify", arguments.verify, "train.verify: first, every:N, always or off");
  train->add_option("--device", arguments.device, "train.device: cpu, cuda, cuda:1");
  train->add_option("--profile", arguments.profile,
                    "write what every instruction of one replayed step took, as a trace for ui.perfetto.dev");

  CLI::App* eval = with_run_config(app.add_subcommand("eval", "held-out loss of a model"));
  eval->add_option("--model", arguments.model,
                   "model directory; default: the finished model in output.dir, else model.path");

  CLI::App* memory = with_run_config(
      app.add_subcommand("memory", "where every byte of a training step will go, before anything runs"));
  memory->add_option("--picture", arguments.picture, "write live bytes by instruction as an SVG file");
  memory->add_option(
      "--target", arguments.target,
      str("plan for a GPU that need not be here, {}, or for the machine of a Target file; with predicted "
          "time",
          fmt::join(target_names(), ", ")));

  CLI::App* plan = with_run_config(
      app.add_subcommand("plan", "how the step is best spread over a cluster that need not be here, and why"));
  PlanCommand& search = arguments.plan;
  plan->add_option("--cluster", search.clusters,
                   "h100x1024: so many of a card in their usual nodes, or a cluster file; of several values, here or "
                   "of the next "
                   "four, each combination is searched for and is a row of a table")
      ->required();
  plan->add_option("--seq", search.tokens, "tokens of a row, in place of data.seq_len")->check(CLI::Range(1, 1 << 24));
  plan->add_option("--batch", search.rows, "rows of a step, in place of train.batch_size times train.micro_batches")
      ->check(CLI::Range(1, 1 << 24));
  plan->add_option("--precision", search.computes, "in place of model.compute; fp8: of train.precision")
      ->check(CLI::IsMember({"bfloat16", "float16", "float32", "fp8"}));
  plan->add_option("--budget", search.memories, "memory of a device, such as 40GiB, in place of the cluster's");
  plan->add_option(
          "--pin", search.pins,
          "what is not to be chosen: pp, dp_replicate, dp_shard, cp, tp, zero or micro_batches, as in --pin tp=8")
      ->allow_extra_args(false);
  plan->add_option("--documents", search.document_tokens,
                   "rows pack documents of so many tokens, as a run finds in its data; otherwise each row is one")
      ->check(CLI::Range(1.0, double{1 << 24}));
  plan->add_option("--plans", search.most_plans, "after so many plans the search stops; 0: it looks at every way")
      ->type_name("N")
      ->capture_default_str();
  plan->add_option("--without", search.without, "a pass that is left out, to see what it gains (docs/passes.md)")
      ->check(CLI::IsMember({"recompute", "merge_collectives", "cut_exchanges", "split_collectives", "fuse", "order"}))
      ->allow_extra_args(false);
  plan->add_option("--top", search.top, "so many of the best are shown")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  plan->add_option("--json", search.json, "write all ways that there are, with what each takes; of a table a list");
  plan->add_option("--html", search.html,
                   "write a page of the best ways, what their time and memory are, and why; of the first "
                   "row of a table");

  CLI::App* generate = app.add_subcommand("generate", "continue a text");
  GenerateCommand& options = arguments.generate;
  generate->add_option("directory", options.directory, "model directory")->required();
  generate->add_option("--prompt", options.prompt, "the text to continue")->required();
  generate->add_option("--tokens", options.sample.tokens, "at most this many new tokens")
      ->check(CLI::Range(1, 1'000'000))
      ->capture_default_str();
  generate->add_option("--temperature", options.sample.temperature, "0: always the likeliest token")
      ->check(CLI::Range(0.0, 100.0))
      ->capture_default_str();
  generate->add_option("--top-k", options.sample.top_k, "draw from this many tokens; 0: from all")
      ->check(CLI::Range(0, 1 << 22))
      ->capture_default_str();
  generate->add_option("--seed", options.sample.seed, "of the draws")->check(seed_range())->capture_default_str();
  generate
      ->add_option("--stop", options.sample.stops,
                   "end before this text, which is not printed; may be given several times")
      ->allow_extra_args(false);
  generate->add_option("--chat", options.chat,
                       "the prompt is what a user says in a chat in this template, the answer alone is printed: model "
                       "(the model's own), " +
                           str("{}", fmt::join(ChatTemplate::names(), ", ")));

  generate->add_option("--device", options.device, "where the model runs: cpu, cuda, cuda:1")->capture_default_str();
  CLI::App* inspect = app.add_subcommand("inspect", "verify a checkpoint, a model or a run, and say what is in it");
  inspect->add_option("directory", arguments.inspected, "where")->required();

  CLI::App* blames = app.add_subcommand("blame", "which rank ended a run, from what all of them did last");
  blames->add_option("directory", arguments.blamed, "output.dir of the run")->required();

  CLI::App* exports = app.add_subcommand("export", "make a plain Hugging Face directory of a checkpoint's model");
  exports->add_option("checkpoint", arguments.exported, "a checkpoint, in slices of ranks or not")->required();
  exports->add_option("directory", arguments.export_to, "where the model goes; must not be there yet")->required();
  exports->add_option("--max-shard-gb", arguments.export_shard_gb, "most GB (10^9 bytes) of a file of weights")
      ->capture_default_str();

  const DataCommand data = add_data_command(app);

  CLI::App* schedule = app.add_subcommand(
      "run-schedule", "run a step once from its Schedule's text, which is code: run texts that you trust");
  RunScheduleCommand& once = arguments.schedule;
  schedule->add_option("schedule", once.schedule, "what step.save_schedule() wrote")->required();
  schedule
      ->add_option("inputs", once.inputs, "safetensors file: \"parameter weight\", \"batch 0\", \"scalar KEY\" and on")
      ->required();
  schedule->add_option("--out", once.out, "safetensors file: \"return 0\", \"number 0\", and all that the step writes")
      ->required();
  schedule->add_option("--kernels", once.kernels, "where generated kernels are kept");
  schedule->add_option("--seed", once.seed, "of the step's draws")->check(seed_range());

  CLI::App* calibrate =
      app.add_subcommand("calibrate", "measure this machine, in under a minute: what step times are predicted from");
  calibrate->add_option("--threads", arguments.calibrate.threads, "that share a kernel; 0: as many as a run has")
      ->check(CLI::Range(0, 4096))
      ->capture_default_str();
  calibrate->add_option("--kernels", arguments.calibrate.kernels,
                        "where generated kernels are kept, and the result beside them");
  calibrate
      ->add_option("--rounds", arguments.calibrate.rounds,
                   "how often everything is measured, about ten seconds each; the shortest time counts")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  calibrate->add_option("--cluster", arguments.calibrate.cluster,
                        "write a cluster file for `stepc plan` and parallel.cluster: how fast ranks reach each other, "
                        "measured by those of --ranks here, or those that torchrun or mpirun start");
  calibrate->add_option("--ranks", arguments.calibrate.ranks, "processes of this machine to measure links between")
      ->check(CLI::Range(2, 4096));
  calibrate->add_flag("--print", arguments.calibrate.prints, "print all rates, as the TOML that is kept");

  CLI::App* config = app.add_subcommand("config", "print every key of run.toml");
  CLI::Option* defaults =
      config->add_flag("--defaults", arguments.config_defaults, "as a run.toml with every default, help in comments");
  config->add_flag("--page", arguments.config_page, "as the page docs/config.md")->excludes(defaults);

  CLI::App* completions = app.add_subcommand("completions", "print what completes stepc's arguments in a shell");
  completions->add_option("shell", arguments.shell, "source <(stepc completions bash) puts it to use")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh"}));

  return {
      {init, [&] { return run_init(arguments.init); }},
      {train, [&arguments, train] { return run_train(arguments, *train); }},
      {eval, [&arguments,
              eval] { return run_eval(load_run_config(arguments.config, overrides_of(*eval)), arguments.model); }},
      {memory,
       [&arguments, memory] {
         return run_memory(load_run_config(arguments.config, overrides_of(*memory)), arguments.picture,
                           arguments.target);
       }},
      {plan,
       [&arguments, plan] {
         std::vector<Override> overrides = overrides_of(*plan);
         overrides.push_back({"parallel.strategy", "auto"});  // the axes are what is asked for
         return run_plan(load_run_config(arguments.config, overrides), arguments.plan);
       }},
      {generate, [&] { return run_generate(arguments.generate); }},
      {inspect, [&] { return run_inspect(arguments.inspected); }},
      {blames, [&] { return print(blame_run(arguments.blamed)); }},
      {exports, [&] { return run_export(arguments.exported, arguments.export_to, arguments.export_shard_gb); }},
      {data.app, data.run},
      {schedule, [&] { return run_schedule(arguments.schedule); }},
      {calibrate, [&] { return run_calibrate(arguments.calibrate); }},
      {config, [&] { return run_config(arguments); }},
      {completions, [&] { return print(arguments.shell == "zsh" ? zsh_completions(app) : bash_completions(app)); }},
  };
}

// CLI11 would call an unknown command an extra argument.
void check_command(const std::vector<Command>& commands, int argc, char** argv) {
  std::vector<std::string> names;
  for (const Command& command : commands) names.push_back(command.app->get_name());
  const std::string known = str("{}", fmt::join(names, ", "));
  USER_CHECK(argc > 1, "give a command: {}; `stepc --help` says more", known);
  const std::string given = argv[1];
  if (given.starts_with("-") || std::ranges::count(names, given) == 1) return;
  const auto near = nearest(given, names);
  user_error("unknown command \"{}\"{}; the commands are {}", given, near ? str(", did you mean {}?", *near) : "",
             known);
}

int run_commands(int argc, char** argv) {
  CLI::App app("Trains language models as one captured, planned and replayed step.", "stepc");
  app.set_version_flag("--version", kVersion);
  app.require_subcommand(1);
  app.get_formatter()->column_width(26);
  Arguments arguments;
  const std::vector<Command> commands = add_commands(app, arguments);
  check_command(commands, argc, argv);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    return app.exit(success);  // --help, --version
  } catch (const CLI::ParseError& error) {
    user_error("{}; `stepc {} --help` says more", error.what(), argv[1]);
  }
  for (const Command& command : commands) {
    if (command.app->parsed()) return command.run();
  }
  return 0;
}

}  // namespace

int run_app(int argc, char** argv) {
  try {
    return run_commands(argc, argv);
  } catch (const LostRank& error) {
    return fail(std::getenv(kLauncherVariable) != nullptr ? kLostRankStatus : 1, error.what());
  } catch (const UserError& error) {
    return fail(2, error.what());
  } catch (const RunFailure& error) {
    return fail(1, error.what());
  } catch (const c10::Error& error) {
    return fail(1, error.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return fail(1, "out of memory");
  } catch (const std::exception& error) {
    return fail(1, error.what());
  }
}

}  // namespace stepc::train
