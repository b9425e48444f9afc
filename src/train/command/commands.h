// What each subcommand but `train` does, after its flags are read. They return exit codes and print to standard output.
#pragma once

#include <filesystem>
#include <string>

#include "calibrate/calibrate.h"
#include "train/config/run_config.h"
#include "train/model/init_model.h"
#include "train/model/sample.h"

namespace stepc::train {

struct GenerateCommand {
  std::filesystem::path directory;
  std::string prompt;
  std::string chat;  // a chat template's name: the prompt is what a user says; empty: a text to continue
  std::string device = "cpu";
  SampleOptions sample;
};

struct CalibrateCommand {
  int threads = 0;                // 0: as many as a run would have
  std::filesystem::path kernels;  // beside which kernels it is kept; empty: the usual directory
  int rounds = kCalibrationRounds;
  bool prints = false;            // the whole Target, as text
  std::filesystem::path cluster;  // where what the links of ranks reach is written; empty: the machine is measured
  int ranks = 0;                  // that are started here to measure them
};

int run_init(const InitOptions& options);
// `model`: the directory to evaluate; empty: the run's finished model, else the model it starts from.
int run_eval(RunConfig config, const std::string& model);
int run_generate(GenerateCommand command);
// A plain Hugging Face directory, which must not be there yet, of a checkpoint or a model.
int run_export(const std::filesystem::path& from, const std::filesystem::path& to, double max_shard_gb);
// Measures this machine and keeps what it finds.
int run_calibrate(const CalibrateCommand& command);
// Throws RunFailure after printing when something is damaged.
int run_inspect(const std::filesystem::path& directory);

// "llama-10m, llama-134m, ..."
std::string preset_list();

}  // namespace stepc::train
