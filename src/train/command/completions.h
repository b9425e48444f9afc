// Scripts that complete stepc's commands, options and keys of run.toml in a shell, made from what the command line
// knows: source <(stepc completions bash).
#pragma once

#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): the library's
class App;
}

namespace stepc::train {

std::string bash_completions(const CLI::App& app);
std::string zsh_completions(const CLI::App& app);

}  // namespace stepc::train
