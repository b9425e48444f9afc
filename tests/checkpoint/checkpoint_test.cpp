#include "checkpoint/checkpoint.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "checkpoint/manifest.h"
#include "tests/expect_user_error.h"
#include "tests/temp_dir.h"

namespace stepc {
namespace {

namespace fs = std::filesystem;

class CheckpointTest : public ::testing::Test {
 protected:
  fs::path write(int64_t step, const std::string& content = "weights") {
    CheckpointWriter writer(dir_.path(), state_of(step));
    write_file_synced(writer.path() / "model.safetensors", content);
    write_file_synced(writer.path() / "config.json", "{}");
    return writer.commit();
  }
  static TrainerState state_of(int64_t step) { return {step, step * 32, UINT64_MAX, 0xFEDCBA9876543210}; }
  std::vector<std::string> names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(dir_.path())) names.push_back(entry.path().filename());
    std::sort(names.begin(), names.end());
    return names;
  }
  int64_t latest() const {
    const auto found = find_latest_checkpoint(dir_.path());
    return found ? found->state.step : -1;
  }

  TempDir dir_;
};

TEST_F(CheckpointTest, RoundTrip) {
  const fs::path directory = write(200);
  EXPECT_EQ(directory.filename(), "checkpoint-000200");
  const Checkpoint checkpoint = read_checkpoint(directory);
  EXPECT_EQ(checkpoint.state, state_of(200));
  EXPECT_EQ(read_text(directory / "model.safetensors", 100), "weights");
  const Manifest manifest = read_manifest(directory);
  EXPECT_EQ(manifest.files.size(), 3U);
  EXPECT_TRUE(manifest.files.contains("trainer_state.json"));
}

TEST_F(CheckpointTest, AnUnfinishedOneLeavesNothing) {
  {
    CheckpointWriter writer(dir_.path(), state_of(1));
    write_file_synced(writer.path() / "model.safetensors", "half");
    EXPECT_EQ(latest(), -1);
  }
  EXPECT_TRUE(names().empty());
}

TEST_F(CheckpointTest, TheSameStepIsReplaced) {
  write(5, "old");
  write(5, "new");
  EXPECT_EQ(read_text(dir_ / "checkpoint-000005/model.safetensors", 100), "new");
  EXPECT_EQ(names(), std::vector<std::string>{"checkpoint-000005"});
}

// Under the very name of a checkpoint stands something that stepc did not write.
TEST_F(CheckpointTest, WhatIsNotOursIsNotReplaced) {
  fs::create_directory(dir_ / "checkpoint-000005");
  write_file_synced(dir_ / "checkpoint-000005/thesis.txt", "years of work");
  write_file_synced(dir_ / "checkpoint-000006", "a file");
  EXPECT_USER_ERROR(write(5), "checkpoint-000005 is no checkpoint that may be replaced");
  EXPECT_USER_ERROR(write(6), "checkpoint-000006 is no checkpoint that may be replaced");
  CheckpointWriter writer(dir_.path(), state_of(7));
  fs::create_directory(dir_ / "checkpoint-000007");  // while it is written
  EXPECT_USER_ERROR(writer.commit(), "checkpoint-000007/manifest.json: No such file");
  EXPECT_EQ(read_text(dir_ / "checkpoint-000005/thesis.txt", 100), "years of work");
  EXPECT_EQ(read_text(dir_ / "checkpoint-000006", 100), "a file");
}

TEST_F(CheckpointTest, SearchTellsDamagedFromForeign) {
  for (const int64_t step : {1, 2, 3, 4}) write(step);
  fs::resize_file(dir_ / "checkpoint-000003/model.safetensors", 1);
  fs::remove(dir_ / "checkpoint-000004/manifest.json");
  fs::create_directory(dir_ / "checkpoint-12");  // not how stepc writes a step
  const CheckpointSearch search = search_checkpoints(dir_.path());
  EXPECT_EQ(search.latest.value().state.step, 2);
  ASSERT_EQ(search.damaged.size(), 1U);
  EXPECT_NE(search.damaged[0].find("checkpoint-000003/model.safetensors: 1 bytes"), std::string::npos);
  ASSERT_EQ(search.foreign.size(), 1U);
  EXPECT_EQ(search.foreign[0].step, 4);
}

TEST_F(CheckpointTest, NamesOfSteps) {
  EXPECT_EQ(step_of_name("out/checkpoint-000200"), 200);
  EXPECT_EQ(step_of_name("checkpoint-1000000"), 1'000'000);
  for (const char* other : {"checkpoint-200", "checkpoint-0000200", "checkpoint-000200.tmp-1", "checkpoint-",
                            "checkpoint", "checkpoint--00001", "checkpoint-99999999999999999999", "model"})
    EXPECT_EQ(step_of_name(other), std::nullopt) << other;
}

TEST_F(CheckpointTest, LatestIsByStepNotByName) {
  EXPECT_EQ(find_latest_checkpoint(dir_ / "none").has_value(), false);
  EXPECT_EQ(latest(), -1);
  write(900'000);
  write(1'000'000);  // a digit more: the smaller name
  EXPECT_EQ(latest(), 1'000'000);
  fs::rename(dir_ / "checkpoint-1000000", dir_ / "checkpoint-best");
  EXPECT_EQ(latest(), 1'000'000);
}

TEST_F(CheckpointTest, OtherNamesAreNotLookedAt) {
  write(1);
  fs::copy(dir_ / "checkpoint-000001", dir_ / "checkpoint-000002.tmp-99", fs::copy_options::recursive);
  fs::create_directory(dir_ / "checkpoint-hf");  // another program's
  write_file_synced(dir_ / "checkpoint-3", "a file");
  EXPECT_EQ(latest(), 1);
}

TEST_F(CheckpointTest, DamagedOnesAreSkipped) {
  struct Case {
    const char* message;
    std::function<void(const fs::path&)> damage;
  };
  const auto replace_in_manifest = [](const fs::path& d, const std::string& from, const std::string& to) {
    std::string text = read_text(d / "manifest.json", 10'000);
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    write_file_synced(d / "manifest.json", text.replace(at, from.size(), to));
  };
  const Case cases[] = {
      {"manifest.json: No such file", [](const auto& d) { fs::remove(d / "manifest.json"); }},
      {"model.safetensors: No such file", [](const auto& d) { fs::remove(d / "model.safetensors"); }},
      {"6 bytes, the manifest says 7", [](const auto& d) { fs::resize_file(d / "model.safetensors", 6); }},
      {"the content is damaged", [](const auto& d) { write_file_synced(d / "model.safetensors", "weighty"); }},
      {"the content is damaged",
       [](const auto& d) {
         write_file_synced(d / "trainer_state.json", std::string(fs::file_size(d / "trainer_state.json"), ' '));
       }},
      {"not valid JSON", [](const auto& d) { fs::resize_file(d / "manifest.json", 40); }},
      {"not valid JSON", [](const auto& d) { write_file_synced(d / "manifest.json", ""); }},
      {"expected an object, found a list", [](const auto& d) { write_file_synced(d / "manifest.json", "[]"); }},
      {"nested more than", [](const auto& d) { write_file_synced(d / "manifest.json", std::string(99'999, '[')); }},
      {"format is \"other\"", [&](const auto& d) { replace_in_manifest(d, "stepc checkpoint", "other"); }},
      {"version 3, this stepc reads versions 1 and 2",
       [&](const auto& d) { replace_in_manifest(d, "\"version\": 1", "\"version\": 3"); }},
      {"\"step\" must be a whole number",
       [&](const auto& d) { replace_in_manifest(d, "\"step\": 2", "\"step\": -2"); }},
      {"trainer_state.json is of step 2, the manifest of step 3",
       [&](const auto& d) { replace_in_manifest(d, "\"step\": 2", "\"step\": 3"); }},
      {"\"../config.json\" is not a plain file name",
       [&](const auto& d) { replace_in_manifest(d, "config.json", "../config.json"); }},
      {"\"bytes\" must be a whole number",
       [&](const auto& d) { replace_in_manifest(d, "\"bytes\": 2", "\"bytes\": \"2\""); }},
      {"the manifest lacks trainer_state.json",
       [](const auto& d) {
         write_manifest(d, {2, {{"config.json", read_manifest(d).files.at("config.json")}}});
       }},
  };
  for (const Case& damaged : cases) {
    write(1);
    const fs::path directory = write(2);
    ASSERT_EQ(latest(), 2);
    damaged.damage(directory);
    EXPECT_USER_ERROR(read_checkpoint(directory), damaged.message);
    EXPECT_EQ(latest(), 1) << damaged.message;
    fs::remove_all(directory);
  }
}

// A state file with a good hash that an older or foreign program wrote.
TEST_F(CheckpointTest, ABadStateIsAnError) {
  const char* good = R"({"step":2,"next_sample":1,"seed":"1","data_hash":"1"})";
  const std::pair<const char*, const char*> cases[] = {
      {R"([])", "expected an object"},
      {R"({"step":2})", "\"next_sample\" is missing"},
      {R"({"step":2.5,"next_sample":1,"seed":"1","data_hash":"1"})", "\"step\" must be a whole number"},
      {R"({"step":2,"next_sample":-1,"seed":"1","data_hash":"1"})", "\"next_sample\" must be a whole number"},
      {R"({"step":2,"next_sample":1,"seed":1,"data_hash":"1"})", "\"seed\" must be text"},
      {R"({"step":2,"next_sample":1,"seed":"18446744073709551616","data_hash":"1"})",
       "\"seed\" must be a 64-bit number"},
      {R"({"step":2,"next_sample":1,"seed":"1x","data_hash":"1"})", "found \"1x\""},
      {R"({"step":2,"next_sample":1,"seed":"","data_hash":"1"})", "\"seed\" must be a 64-bit number"},
  };
  const fs::path directory = write(2);
  const auto with_state = [&](const char* text) {
    fs::remove(directory / "manifest.json");
    write_file_synced(directory / "trainer_state.json", text);
    write_manifest(directory, make_manifest(directory, 2));
    return read_checkpoint(directory);
  };
  EXPECT_NO_THROW(with_state(good));
  for (const auto& [text, message] : cases) EXPECT_USER_ERROR(with_state(text), message);
}

TEST_F(CheckpointTest, PruneKeepsTheNewest) {
  for (const int64_t step : {1, 2, 3, 4}) write(step);
  prune_checkpoints(dir_.path(), {.last = 2});
  EXPECT_EQ(names(), (std::vector<std::string>{"checkpoint-000003", "checkpoint-000004"}));
  prune_checkpoints(dir_.path(), {.last = 5});
  EXPECT_EQ(names().size(), 2U);
  EXPECT_NO_THROW(prune_checkpoints(dir_ / "none", {.last = 1}));
}

TEST_F(CheckpointTest, PruneNeverRemovesTheLastGoodOne) {
  write(1);
  write(2);
  fs::resize_file(write(3) / "model.safetensors", 1);
  prune_checkpoints(dir_.path(), {.last = 1});
  EXPECT_EQ(names(), (std::vector<std::string>{"checkpoint-000002", "checkpoint-000003"}));
  EXPECT_EQ(latest(), 2);
}

TEST_F(CheckpointTest, PruneLeavesWhatIsNotOurs) {
  write(7);
  fs::create_directory(dir_ / "checkpoint-5");
  write_file_synced(dir_ / "checkpoint-5/trainer_state.json", "{}");
  fs::create_directory(dir_ / "checkpoint-000006.tmp-1");          // of a process that lives
  fs::create_directory(dir_ / "checkpoint-000006.tmp-999999999");  // of one that does not
  fs::create_directory(dir_ / "checkpoint-000006.tmp-x");
  fs::create_directory(dir_ / "checkpoint-notes.tmp-999999999");
  fs::create_directory(dir_ / "model.tmp-1");
  fs::create_directory(dir_ / "model.tmp-999999999");
  fs::create_directory(dir_ / "models.tmp-999999999");
  fs::rename(write(4), dir_ / "checkpoint-kept");
  prune_checkpoints(dir_.path(), {.last = 1});
  EXPECT_EQ(names(), (std::vector<std::string>{
                         "checkpoint-000006.tmp-1", "checkpoint-000006.tmp-x", "checkpoint-000007", "checkpoint-5",
                         "checkpoint-kept", "checkpoint-notes.tmp-999999999", "model.tmp-1", "models.tmp-999999999"}));
}

}  // namespace
}  // namespace stepc
