// `stepc data tokenize` and `stepc data inspect`: text files to token shards, and what a training sample of them is.
#pragma once

#include <functional>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace stepc::train {

struct DataCommand {
  CLI::App* app;
  std::function<int()> run;
};

DataCommand add_data_command(CLI::App& app);

}  // namespace stepc::train
