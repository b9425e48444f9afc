// What a person may choose for an accelerated step.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "capture/op_rule.h"
#include "cost/target.h"
#include "engine/ranks/parallel.h"
#include "passes/fp8.h"
#include "plan/memory_budget.h"

namespace stepc {

struct KernelSources;

enum class Mode : uint8_t {
  kEager,  // runs the step as it is, without a plan: the baseline for measurements
  kExact,  // replays the recorded kernels from a planned arena, bit-equal to eager
  kFast,   // runs the step's Graph, simplified and fused; a step that a Graph cannot express runs as in exact mode
};
std::string_view name_of(Mode mode);
// Throws UserError for any other text.
Mode parse_mode(std::string_view text);

// How a step becomes a plan.
enum class Capture : uint8_t {
  kRun,      // the step runs under the recorder until two recordings agree
  kVirtual,  // nothing is executed; the first call already runs the plan, in the plan's memory. Exact mode and steps
             // whose host code reads values fall back to kRun, with a log line that gives the reason
};
std::string_view name_of(Capture capture);
// Throws UserError for any other text.
Capture parse_capture(std::string_view text);

// What a replay does with the step's host code.
enum class PythonMode : uint8_t {
  kAuto,   // as kWatch if a recording has found that safe, else as kTrace
  kWatch,  // host code does not run; the values that it read are compared before every replay
  kTrace,  // host code runs at every call, without kernels, and its calls are compared with the plan's
  kPure,   // host code does not run: the user promises that it does nothing and reads nothing but the step's arguments,
           // modules, optimizers and schedulers. As kTrace once a check has found that the step does something else
};
std::string_view name_of(PythonMode mode);
// Throws UserError for any other text.
PythonMode parse_python_mode(std::string_view text);

// "auto" gives up a plan whose replays take longer than eager; "off" gives up no plan for that reason. Returns true for
// "auto". Throws UserError for any other text.
bool parse_pace(std::string_view text);

// Which replays are compared with eager. In a compared step the result of eager counts. Recorded calls must give the
// same bits, a Graph the same values within rounding. A Graph is also compared with its plain form, one ATen call a
// node; only with that if eager would draw other random numbers (engine/verify/verify_replay.h).
struct Verify {
  enum class Kind : uint8_t {
    kOff,
    kFirst,  // the first replay of every plan
    kEvery,  // the first one, and every `interval`-th after it
  };
  Kind kind = Kind::kFirst;
  int64_t interval = 0;

  static Verify off() { return {Kind::kOff, 0}; }
  static Verify first() { return {Kind::kFirst, 0}; }
  static Verify every(int64_t interval) { return {Kind::kEvery, interval}; }
  static Verify always() { return every(1); }
};

// "off", "first", "always" or "every:N". Throws UserError for any other text.
Verify parse_verify(std::string_view text);
std::string to_text(const Verify& verify);

// "tensorwise" or "rowwise". Throws UserError for any other text.
Fp8Recipe parse_fp8_recipe(std::string_view text);

struct Config {
  Mode mode = Mode::kFast;
  Capture capture = Capture::kRun;
  PythonMode python = PythonMode::kAuto;
  bool weighs_pace = true;  // see parse_pace()
  Verify verify = {};
  MemoryBudget memory_budget = {};    // for fast mode
  std::optional<Fp8Recipe> fp8 = {};  // for fast mode: linear layers multiply in float8; none: as the step does
  std::optional<Target> target = {};  // for weighing, as an earlier run did: a CPU's, or a GPU's for ranks on devices;
                                      // none: what `stepc calibrate` keeps beside the kernels, or the default, and on
                                      // devices that of their card
  std::filesystem::path kernel_directory = {};  // keeps generated kernels between runs; empty: they are not kept
  std::shared_ptr<KernelSources> kernels = {};  // shared with other steps; none: made when fast mode needs them
  std::optional<Parallel> parallel = {};        // the step runs on the ranks of a mesh; none: on this process alone
  OpRules op_rules = {};                        // rules for the program's own operators, each made by op_rule()
  bool device_graphs = true;                    // a device runs what it can at one launch, once its kernels are ready
  bool device_kernels = false;  // fast mode runs a Graph on CUDA too, where none has run yet; off: the recorded calls
  int max_plans = 8;       // signatures whose plans are kept, least recently used out first; and plans of one signature
  int max_recordings = 6;  // recordings of one signature without a plan before it stays eager
};

// Throws UserError that names an invalid field.
void check(const Config& config);

}  // namespace stepc
