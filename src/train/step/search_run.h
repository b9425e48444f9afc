// A run's step as search() takes it: what `stepc plan` and strategy = "auto" search for.
#pragma once

#include <optional>

#include "models/decoder_config.h"
#include "models/lora.h"
#include "plan/search.h"
#include "plan/search_text.h"
#include "train/config/run_config.h"

namespace stepc::train {

// Of a model of that shape with rows of data.longest_row() tokens. `document_tokens`: of data whose rows pack documents
// (train/step/batches.h); else each row is one. It copies what it is given.
SearchModel search_model(const RunConfig& config, const models::DecoderConfig& shape,
                         const std::optional<models::LoraConfig>& adapter, std::optional<double> document_tokens = {});
// What the keys of [parallel] beside the axes say: order, chunks, rules and so on, and of named stages how many there
// are.
SearchPins search_pins(const RunConfig::Parallel& parallel);
SearchSubject search_subject(const RunConfig& config, const models::DecoderConfig& shape);

}  // namespace stepc::train
