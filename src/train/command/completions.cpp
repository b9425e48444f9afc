#include "train/command/completions.h"

#include <string>
#include <vector>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

#include "base/text.h"
#include "train/config/run_config_keys.h"

namespace stepc::train {
namespace {

// The words that may follow a command.
struct Completions {
  std::string command;  // "", "train", "data tokenize"
  std::vector<std::string> words;
};

void collect(const CLI::App& app, const std::string& command, std::vector<Completions>& all) {
  Completions here = {command, {}};
  for (const CLI::App* child : app.get_subcommands({})) here.words.push_back(child->get_name());
  for (const CLI::Option* option : app.get_options())
    for (const std::string& name : option->get_lnames()) here.words.push_back("--" + name);
  // Commands that accept unknown arguments take config keys.
  if (app.get_allow_extras())
    for (const Key& key : run_config_keys()) here.words.push_back(str("--{}=", key.name));
  all.push_back(std::move(here));
  for (const CLI::App* child : app.get_subcommands({}))
    collect(*child, command.empty() ? child->get_name() : command + " " + child->get_name(), all);
}

std::vector<Completions> collect(const CLI::App& app) {
  std::vector<Completions> all;
  collect(app, "", all);
  return all;
}

std::string word_cases(const CLI::App& app) {
  std::string text;
  for (const Completions& each : collect(app))
    text += str("      \"{}\") found=\"{}\" ;;\n", each.command, fmt::join(each.words, " "));
  return text;
}

std::string command_pattern(const CLI::App& app) {
  std::vector<std::string> commands;
  for (const Completions& each : collect(app))
    if (!each.command.empty()) commands.push_back('"' + each.command + '"');
  return str("{}", fmt::join(commands, " | "));
}

std::string value_cases() {
  const RunConfig defaults;
  std::string text;
  for (const Key& key : run_config_keys()) {
    std::vector<std::string> choices = key.allowed.choices;
    const std::string value = value_text(key, defaults);
    if (value == "true" || value == "false") choices = {"true", "false"};
    if (!choices.empty()) text += str("      --{}) found=\"{}\" ;;\n", key.name, fmt::join(choices, " "));
  }
  return text;
}

}  // namespace

std::string bash_completions(const CLI::App& app) {
  return str(R"(# Completions of stepc for bash: source <(stepc completions bash)
_stepc() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD - 1]}} command="" found="" each key=""
  # bash cuts --key=value at the sign.
  if [[ $word == "=" ]]; then key=$before word=""; elif [[ $before == "=" ]]; then key=${{COMP_WORDS[COMP_CWORD - 2]}}; fi
  if [[ -n $key ]]; then
    case $key in
{values}    esac
  else
    for each in "${{COMP_WORDS[@]:1:COMP_CWORD - 1}}"; do
      case "${{command:+$command }}$each" in
        {commands}) command="${{command:+$command }}$each" ;;
      esac
    done
    case "$command" in
{words}    esac
  fi
  COMPREPLY=($(compgen -W "$found" -- "$word"))
  if [[ ${{#COMPREPLY[@]}} -eq 1 && ${{COMPREPLY[0]}} == *= ]]; then compopt -o nospace 2> /dev/null; fi
}}
complete -o default -F _stepc stepc
)",
             fmt::arg("values", value_cases()), fmt::arg("commands", command_pattern(app)),
             fmt::arg("words", word_cases(app)));
}

std::string zsh_completions(const CLI::App& app) {
  return str(R"(#compdef stepc
# Completions of stepc for zsh: source <(stepc completions zsh), after compinit
_stepc() {{
  local command="" found="" each
  if [[ $words[CURRENT] == --*=* ]]; then
    case ${{words[CURRENT]%%=*}} in
{values}    esac
    compset -P '*='
    if [[ -n $found ]]; then compadd -- ${{=found}}; else _files; fi
    return
  fi
  for each in $words[2,CURRENT-1]; do
    case "${{command:+$command }}$each" in
      {commands}) command="${{command:+$command }}$each" ;;
    esac
  done
  case "$command" in
{words}  esac
  compadd -S '' -- ${{(M)${{=found}}:#*=}}
  compadd -- ${{${{=found}}:#*=}}
  _files
}}
compdef _stepc stepc
)",
             fmt::arg("values", value_cases()), fmt::arg("commands", command_pattern(app)),
             fmt::arg("words", word_cases(app)));
}

}  // namespace stepc::train
