#include "train/run/same_on_all.h"

#include <chrono>
#include <ctime>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <unistd.h>

#include "base/check.h"
#include "base/clock.h"
#include "train/config/run_config_keys.h"

namespace stepc::train {

namespace {

// "[train]" and "steps = 20" as ("train.steps", "20"), in the order of the text.
std::vector<std::pair<std::string, std::string>> keys_of(const std::string& toml) {
  std::vector<std::pair<std::string, std::string>> keys;
  std::string section;
  std::istringstream lines(toml);
  for (std::string line; std::getline(lines, line);) {
    const size_t equals = line.find(" = ");
    if (line.starts_with("["))
      section = line.substr(1, line.find(']') - 1);
    else if (equals != std::string::npos)
      keys.emplace_back(section + "." + line.substr(0, equals), line.substr(equals + 3));
  }
  return keys;
}

}  // namespace

void check_same(Ranks& ranks, const std::string& what, const std::string& mine) {
  const std::vector<std::string> all = ranks.exchange(mine);
  for (size_t r = 1; r < all.size(); ++r)
    USER_CHECK(all[r] == all[0], "rank {} has {} {}, and rank 0 {}: all ranks want the same", r, what, all[r], all[0]);
}

void check_shared_directory(Ranks& ranks, const std::filesystem::path& directory) {
  constexpr std::chrono::milliseconds kPause{20};
  constexpr double kPatienceSeconds = 5;  // a disk of the network may show it late
  const std::filesystem::path file = directory / ".shared";
  const bool is_first = ranks.rank() == 0;
  const std::string word = ranks.exchange(is_first ? str("{} {}", getpid(), std::time(nullptr)) : std::string())[0];
  struct Removal {
    const std::filesystem::path& path;
    bool is_ours;
    ~Removal() {
      std::error_code ignored;
      if (is_ours) std::filesystem::remove(path, ignored);
    }
  } const removal{file, is_first};
  if (is_first) std::ofstream(file) << word;
  ranks.barrier();
  const auto is_there = [&] {
    std::string found;
    std::getline(std::ifstream(file), found);
    return found == word;
  };
  for (const auto began = Clock::now(); !is_there(); std::this_thread::sleep_for(kPause))
    USER_CHECK(seconds_since(began) < kPatienceSeconds,
               "output.dir = {}: what rank 0 writes there is not found there: all ranks want one directory, on a disk "
               "that their machines share",
               directory.string());
  ranks.barrier();
}

void check_same_config(Ranks& ranks, const RunConfig& config) {
  const std::vector<std::string> all = ranks.exchange(to_toml(config));
  const auto first = keys_of(all[0]);
  for (size_t r = 1; r < all.size(); ++r) {
    if (all[r] == all[0]) continue;
    std::map<std::string, std::string> other;
    for (auto& [key, value] : keys_of(all[r])) other.emplace(std::move(key), std::move(value));
    for (const auto& [key, value] : first) {
      const auto found = other.find(key);
      const std::string theirs = found == other.end() ? "nothing" : found->second;
      USER_CHECK(theirs == value, "rank {} was started with {} = {}, and rank 0 with {}: all ranks want the same", r,
                 key, theirs, value);
      other.erase(key);
    }
    for (const auto& [key, value] : other)
      user_error("rank {} was started with {} = {}, and rank 0 with nothing: all ranks want the same", r, key, value);
    user_error("rank {} was started with another configuration than rank 0", r);
  }
}

}  // namespace stepc::train
