// The data of a run, as its config names it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/corpus.h"
#include "train/config/run_config.h"
#include "train/model/model_directory.h"
#include "train/report/progress.h"

namespace stepc::train {

// "3 lines of text hold ...", "2 lines were left out, the first: ..."
std::vector<std::string> to_text(const TextFaults& faults);

// A UserError where the model has not as many positions as the run's longest row has tokens.
void check_row_length(const RunConfig& config, const ModelDirectory& model);

// `config.train.threads` is resolved. Tokenises what has not been, which `progress` shows. `is_alone`: of one run no
// other process waits for the same cache as a matter of course.
Corpus read_corpus(const RunConfig& config, const ModelDirectory& model, Progress& progress, bool is_alone = true);

}  // namespace stepc::train
