// A row of a batch as a person reads it: its text, coloured by document and by what the loss counts.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "data/shard/token_stream.h"
#include "data/tokenizer.h"

namespace stepc {

struct ShownRowOptions {
  bool colour = true;    // a colour for each document, dim where the loss counts nothing; else a line for each run
  bool borders = false;  // a bar between tokens
};

// Control characters of the text are shown, not sent to the terminal.
std::string shown_row(const Tokenizer& tokenizer, const PackedRow& row, const ShownRowOptions& options);

// Of the row's tokens, how many the loss counts: its labels that are one.
size_t learned_tokens(const PackedRow& row);

}  // namespace stepc
