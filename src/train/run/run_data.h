// The data of a run, as its config names it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "data/corpus.h"
#include "train/config/run_config.h"
#include "train/model/model_directory.h"

namespace stepc::train {

struct DataEvents {
  std::function<void(uint64_t done, uint64_t total)> tokenizing;  // bytes of text
  std::function<void()> waiting;                                  // another process tokenises for the same cache
  std::function<void(uint64_t lines)> repaired;                   // lines that held what is no character
};

// "3 lines of text hold ..."
std::string repaired_text(uint64_t lines);

// A UserError where the model has not as many positions as the run's longest row has tokens.
void check_row_length(const RunConfig& config, const ModelDirectory& model);

// `config.train.threads` is resolved.
Corpus read_corpus(const RunConfig& config, const ModelDirectory& model, DataEvents events = {});

}  // namespace stepc::train
