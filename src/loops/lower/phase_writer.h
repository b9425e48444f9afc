// PhaseWriter: writes one phase of a LoopProgram, keeping each value in the outermost block where it can be computed.
// Blocks: the entry (once a call), an item, a row of it, and one sweep over the columns after the other. The loops of
// the space become the phase's variables, neighbours that always move together as one.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <tuple>
#include <vector>

#include "loops/loop_program.h"

namespace stepc {

enum class Level : uint8_t { kEntry, kItem, kRow, kSweep };

// How the loops of a space are run.
struct PhaseForm {
  enum class Kind : uint8_t {
    kRows,    // an item is a row; its columns run in lanes
    kLanes,   // lanes are rows, along the last row loop; columns run one after the other
    kChunks,  // an item is a fixed share of all rows
    kFlat,    // no rows, one column loop: an item is an element
    kFlatChunks,
  };
  Kind kind = Kind::kRows;
  std::vector<uint32_t> rows, columns;  // loops of the space, outer first
  int64_t most_chunks = 64;
};

class PhaseWriter {
 public:
  using Value = int32_t;
  static constexpr Value kNone = -1;

  // `merged[l]`: loop l only ever moves on when loop l - 1's inner neighbour is done, so both are one variable.
  PhaseWriter(PhaseForm form, const std::vector<int64_t>& extents, const std::vector<bool>& merged);

  // ---- values; types follow from the arguments
  Value constant(ValueType type, double value);
  Value integer(ValueType type, int64_t value);
  Value index(const Affine& affine);
  Value load(uint32_t buffer, ValueType type, const Affine& position, Value indirect = kNone, int64_t stride = 0,
             Value condition = kNone);
  Value compute(LoopOp op, std::vector<Value> args);
  Value convert(Value value, ValueType type);
  Value round_to(Value value, DType dtype);  // gives the dtype's value type
  Value bits(Value value, ValueType type);
  [[nodiscard]] ValueType type(Value value) const { return at(value).type; }
  [[nodiscard]] std::optional<double> constant_value(Value value) const;  // of a real constant
  [[nodiscard]] Level level(Value value) const { return levels_[static_cast<size_t>(value)]; }

  // ---- effects
  void store(Level level, uint32_t buffer, const Affine& position, Value value);
  Value accumulator(Level level, ValueType type, Combine combine, double real, int64_t integer);
  void accumulate(Level level, Value accumulator, Value value);
  Value finish(Level level, Value accumulator);

  // A sweep over the columns, in each row or once an item.
  void begin_sweep(Level in = Level::kRow);
  void end_sweep();
  // For a store into a sweep that is over, of a value made there.
  [[nodiscard]] size_t sweep() const { return sweep_; }
  void store_in(size_t sweep, uint32_t buffer, const Affine& position, Value value);
  // What is written on level kItem from now on comes after the item's rows.
  void end_rows();
  // The number of the item, as a form.
  static Affine item() { return Affine::of(kVariableMark); }
  // A serial loop inside the current sweep, for combining the chunks; gives its variable as a form.
  Affine begin_serial(int64_t extent);
  void end_serial();

  [[nodiscard]] int64_t rows() const;  // all rows
  [[nodiscard]] int64_t row_size() const;
  // Which loops can be merged with the one before: what the affine forms seen so far allow.
  [[nodiscard]] std::vector<bool> mergeable() const;
  LoopPhase take();

 private:
  // In an affine form: a loop number from here on is a variable of the phase, not a loop of the space.
  static constexpr uint32_t kVariableMark = 1U << 30;
  static constexpr uint32_t kMerged = kVariableMark - 1;

  struct Entry {
    LoopInstruction instruction;
    Value id = kNone;
    int nested = -1;  // a block instead
  };
  using Block = std::vector<Entry>;
  struct Chain {  // loops of the space that are one variable
    uint32_t innermost = 0;
    int64_t extent = 1;
    uint32_t variable = 0;
  };

  std::vector<Chain> chains_of(const std::vector<uint32_t>& loops, const std::vector<bool>& merged) const;
  void make_variables();
  void add_digits(std::vector<Chain>& chains, size_t count, uint32_t source);
  void assign(Chain& chain, uint32_t variable);
  uint32_t add_variable(LoopVariable variable);
  size_t add_loop(size_t block, uint32_t variable);  // gives the block inside

  [[nodiscard]] const LoopInstruction& at(Value value) const { return values_[static_cast<size_t>(value)]; }
  [[nodiscard]] size_t block_of(Level level) const;
  [[nodiscard]] Level level_of(const Affine& affine) const;
  size_t new_block();
  Affine translated(const Affine& affine);
  Value append(Level level, LoopInstruction instruction);
  void flatten(size_t block, std::vector<int32_t>& place, LoopPhase& phase) const;

  PhaseForm form_;
  std::vector<int64_t> extents_;
  std::vector<Chain> rows_, columns_;
  std::vector<LoopVariable> variables_;
  std::vector<uint32_t> variable_of_;  // by loop of the space; kMerged: its inner neighbour speaks for it
  int64_t items_ = 1;

  std::vector<Block> blocks_;
  size_t entry_ = 0, item_ = 0, row_ = 0, item_end_ = 0, sweep_ = 0;
  size_t sweep_outside_ = 0;
  bool rows_done_ = false;
  uint32_t row_variable_ = 0;  // of the loop over rows; 0: an item is a row
  std::vector<size_t> serial_outside_;
  std::vector<LoopInstruction> values_;  // by Value
  std::vector<Level> levels_;
  using Key = std::tuple<LoopOp, ValueType, std::array<Value, 3>, uint64_t, int64_t, DType, Affine>;
  std::array<std::map<Key, Value>, 4> known_;  // equal instructions, by level
  std::vector<Affine> seen_;
};

}  // namespace stepc
