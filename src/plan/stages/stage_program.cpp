#include "plan/stages/stage_program.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/hash.h"
#include "base/text.h"

namespace stepc {

namespace {

// Sends to one rank that are on their way at a time, before a further one waits.
constexpr size_t kMostOnTheirWay = 2;

struct Run {
  uint32_t function = 0;
  int64_t micro_batch = 0;
};

class ProgramBuilder {
 public:
  // `most_on_their_way`: sends of one function's kind to one rank; none: they are waited for at the end.
  // `rank_of`: by stage.
  ProgramBuilder(const StageCut& cut, std::vector<std::vector<Run>> runs, int64_t micro_batches,
                 const std::function<int64_t(int64_t stage)>& rank_of, std::optional<size_t> most_on_their_way)
      : cut_(cut), runs_(std::move(runs)), most_(most_on_their_way) {
    program_.micro_batches = micro_batches;
    for (const StageFunction& one : cut.functions)
      program_.functions.push_back({one.name, rank_of(one.stage), one.takes, one.gives});
    number_messages();
  }

  StageProgram build() {
    for (int64_t rank = 0; rank < ranks(); ++rank) {
      add_calls(rank);
      place_in_slots(program_.calls.back());
    }
    return std::move(program_);
  }

 private:
  [[nodiscard]] int64_t ranks() const { return std::ssize(runs_); }
  [[nodiscard]] int64_t rank_of(uint32_t function) const { return program_.functions[function].rank; }

  // What a function gives to another rank, all at once.
  void number_messages() {
    uint32_t next = 0;
    for (uint32_t f = 0; f < cut_.functions.size(); ++f)
      for (int64_t to = 0; to < ranks(); ++to) {
        if (to == rank_of(f)) continue;
        std::vector<uint32_t> sent;
        for (const uint32_t value : cut_.functions[f].gives)
          if (std::ranges::any_of(cut_.values[value].users, [&](uint32_t user) { return rank_of(user) == to; }))
            sent.push_back(value);
        if (sent.empty()) continue;
        const auto size = static_cast<uint32_t>(sent.size());
        messages_[{f, to}] = {next, std::move(sent)};
        next += size * static_cast<uint32_t>(program_.micro_batches);
      }
  }
  struct Message {
    uint32_t first = 0;  // number of micro-batch 0
    std::vector<uint32_t> values;
  };
  StageCall message_call(StageCall::Kind kind, uint32_t function, int64_t to, int64_t micro_batch, int64_t peer) const {
    const Message& message = messages_.at({function, to});
    StageCall call{kind, function, micro_batch, peer};
    call.message = message.first + static_cast<uint32_t>(micro_batch) * static_cast<uint32_t>(message.values.size());
    for (const uint32_t value : message.values)
      (kind == StageCall::Kind::kReceive ? call.writes : call.reads).push_back({0, value});
    return call;
  }

  void add_calls(int64_t rank) {
    std::vector<StageCall>& calls = program_.calls.emplace_back();
    std::map<std::pair<Phase, int64_t>, std::deque<StageCall>> on_their_way;
    std::set<std::pair<uint32_t, int64_t>> received;  // function and micro-batch
    const auto wait_for = [&](std::deque<StageCall>& sends) {
      StageCall sent = sends.front();
      sends.pop_front();
      sent.kind = StageCall::Kind::kSent;
      calls.push_back(std::move(sent));
    };
    for (const Run& run : runs_[static_cast<size_t>(rank)]) {
      const StageFunction& function = cut_.functions[run.function];
      for (const uint32_t value : function.takes) {
        const uint32_t maker = cut_.values[value].maker;
        if (rank_of(maker) != rank && received.emplace(maker, run.micro_batch).second)
          calls.push_back(message_call(StageCall::Kind::kReceive, maker, rank, run.micro_batch, rank_of(maker)));
      }
      StageCall& call = calls.emplace_back(StageCall{StageCall::Kind::kRun, run.function, run.micro_batch});
      for (const uint32_t value : function.takes) call.reads.push_back({0, value});
      for (const uint32_t value : function.gives) call.writes.push_back({0, value});
      for (int64_t to = 0; to < ranks(); ++to) {
        if (!messages_.contains({run.function, to})) continue;
        std::deque<StageCall>& sends = on_their_way[{function.phase, to}];
        if (most_ && sends.size() >= *most_) wait_for(sends);
        calls.push_back(message_call(StageCall::Kind::kSend, run.function, to, run.micro_batch, to));
        sends.push_back(calls.back());
      }
    }
    for (auto& [to, sends] : on_their_way)
      while (!sends.empty()) wait_for(sends);
  }

  // The first slot that is free from where a value is written to where it is read last. A slot holds one value, of one
  // micro-batch after the other, so few sets of slots are a function's.
  void place_in_slots(std::vector<StageCall>& calls) {
    using Key = std::pair<uint32_t, int64_t>;  // value and micro-batch
    std::map<Key, size_t> last;
    for (size_t c = 0; c < calls.size(); ++c)
      for (const auto* list : {&calls[c].reads, &calls[c].writes})
        for (const SlotValue& one : *list) last[{one.value, calls[c].micro_batch}] = c;
    std::map<Key, uint32_t> slot_of;
    struct Slot {
      uint32_t value;
      bool is_free;
    };
    std::vector<Slot> slots;
    for (size_t c = 0; c < calls.size(); ++c) {
      StageCall& call = calls[c];
      for (SlotValue& one : call.writes) {
        const auto takes_it = [&](const Slot& slot) { return slot.is_free && slot.value == one.value; };
        const auto found = std::ranges::find_if(slots, takes_it);
        one.slot = static_cast<uint32_t>(found - slots.begin());
        if (found == slots.end())
          slots.push_back({one.value, false});
        else
          found->is_free = false;
        slot_of[{one.value, call.micro_batch}] = one.slot;
      }
      for (SlotValue& one : call.reads) one.slot = slot_of.at({one.value, call.micro_batch});
      for (const auto* list : {&call.reads, &call.writes})
        for (const SlotValue& one : *list)
          if (last.at({one.value, call.micro_batch}) == c) call.frees.push_back(one.slot);
      for (const uint32_t slot : call.frees) slots[slot].is_free = true;
    }
    program_.slots.push_back(static_cast<uint32_t>(slots.size()));
  }

  const StageCut& cut_;
  std::vector<std::vector<Run>> runs_;  // by rank
  std::optional<size_t> most_;
  std::map<std::pair<uint32_t, int64_t>, Message> messages_;  // by function and rank that it goes to
  StageProgram program_;
};

StageProgram build(const StageCut& cut, const std::vector<std::vector<Run>>& runs, int64_t micro_batches,
                   const std::function<int64_t(int64_t stage)>& rank_of) {
  StageProgram program = ProgramBuilder(cut, runs, micro_batches, rank_of, kMostOnTheirWay).build();
  if (!find_deadlock(program).empty()) program = ProgramBuilder(cut, runs, micro_batches, rank_of, {}).build();
  check_ends(program);
  return program;
}

std::string name_of(const StageProgram& program, const StageCall& call) {
  return str("{}, micro-batch {}", program.functions[call.function].name, call.micro_batch);
}

std::string slots_text(const std::vector<SlotValue>& slots) {
  std::vector<std::string> out;
  for (const SlotValue& one : slots) out.push_back(str("slot {} = v{}", one.slot, one.value));
  return str("{}", fmt::join(out, ", "));
}

}  // namespace

StageProgram make_program(const StageCut& cut, const StageOrder& order) {
  INTERNAL_CHECK_EQ(cut.stages, order.stages);
  using Kind = StagePass::Kind;
  std::map<std::pair<Kind, int64_t>, uint32_t> functions;
  for (uint32_t f = 0; f < cut.functions.size(); ++f) {
    const StageFunction& one = cut.functions[f];
    const Kind kind = one.is_of_weights              ? Kind::kWeights
                      : one.phase == Phase::kForward ? Kind::kForward
                      : cut.splits_backward          ? Kind::kInputs
                                                     : Kind::kBackward;
    functions[{kind, one.stage}] = f;
  }
  std::vector<std::vector<Run>> runs;
  for (const std::vector<StagePass>& row : order.passes) {
    std::vector<Run>& of_rank = runs.emplace_back();
    const auto add = [&](Kind kind, const StagePass& pass) {  // a stage may have nothing to do in a pass
      if (const auto found = functions.find({kind, pass.stage}); found != functions.end())
        of_rank.push_back({found->second, pass.micro_batch});
    };
    for (const StagePass& pass : row) {
      const bool is_both = pass.kind == Kind::kBackward && cut.splits_backward;
      add(is_both ? Kind::kInputs : pass.kind, pass);
      if (is_both) add(Kind::kWeights, pass);
    }
  }
  return build(cut, runs, order.micro_batches, [&](int64_t stage) { return order.rank_of(stage); });
}

StageProgram make_program(const StageCut& update, int64_t ranks) {
  std::vector<std::vector<Run>> runs(static_cast<size_t>(ranks));
  for (uint32_t f = 0; f < update.functions.size(); ++f)
    runs[static_cast<size_t>(update.functions[f].stage)].push_back({f, 0});
  return build(update, runs, 1, [](int64_t stage) { return stage; });
}

std::vector<size_t> run_in_turns(const StageProgram& program,
                                 const std::function<bool(size_t rank, const StageCall& call)>& run) {
  std::vector<size_t> ended(program.calls.size());
  for (bool moves = true; moves;) {
    moves = false;
    for (size_t rank = 0; rank < ended.size(); ++rank)
      while (ended[rank] < program.calls[rank].size() && run(rank, program.calls[rank][ended[rank]])) {
        ++ended[rank];
        moves = true;
      }
  }
  return ended;
}

std::string find_deadlock(const StageProgram& program) {
  std::vector<std::set<uint32_t>> sent(program.calls.size()), posted(program.calls.size());  // by rank
  const std::vector<size_t> ended = run_in_turns(program, [&](size_t rank, const StageCall& call) {
    const auto peer = static_cast<size_t>(call.peer);
    switch (call.kind) {
      case StageCall::Kind::kRun:
        return true;
      case StageCall::Kind::kSend:
        sent[rank].insert(call.message);
        return true;
      case StageCall::Kind::kReceive:
        posted[rank].insert(call.message);
        return sent.at(peer).contains(call.message);
      case StageCall::Kind::kSent:
        return posted.at(peer).contains(call.message);
    }
    return false;
  });
  for (size_t rank = 0; rank < ended.size(); ++rank) {
    if (ended[rank] == program.calls[rank].size()) continue;
    const StageCall& call = program.calls[rank][ended[rank]];
    return str("rank {} waits for rank {} to {} what {} makes", rank, call.peer,
               call.kind == StageCall::Kind::kReceive ? "send" : "receive", name_of(program, call));
  }
  return {};
}

void check_ends(const StageProgram& program) {
  const std::string deadlock = find_deadlock(program);
  USER_CHECK(deadlock.empty(), "the order of the pipeline's passes never ends: {}", deadlock);
}

void verify(const StageProgram& program) {
  INTERNAL_CHECK_EQ(program.slots.size(), program.calls.size());
  std::set<std::pair<uint32_t, int64_t>> ran;
  using Sent = std::map<uint32_t, std::pair<int64_t, std::vector<uint32_t>>>;  // by message: to or from whom, values
  std::vector<Sent> sent(program.calls.size()), received(program.calls.size());
  for (size_t rank = 0; rank < program.calls.size(); ++rank) {
    struct Held {
      uint32_t value = 0;
      int64_t micro_batch = 0;
    };
    std::vector<std::optional<Held>> slots(program.slots[rank]);
    std::set<uint32_t> on_their_way;
    for (const StageCall& call : program.calls[rank]) {
      const std::string what = str("rank {}, {}", rank, name_of(program, call));
      INTERNAL_CHECK(call.function < program.functions.size() && call.micro_batch < program.micro_batches,
                     "{}: there is none", what);
      const auto values_of = [](const std::vector<SlotValue>& list) {
        std::vector<uint32_t> values;
        for (const SlotValue& one : list) values.push_back(one.value);
        return values;
      };
      for (const SlotValue& one : call.reads) {
        const auto& held = slots.at(one.slot);
        INTERNAL_CHECK(held && held->value == one.value && held->micro_batch == call.micro_batch,
                       "{}: slot {} does not hold v{}", what, one.slot, one.value);
      }
      for (const SlotValue& one : call.writes) {
        INTERNAL_CHECK(!slots.at(one.slot), "{}: slot {} is written while it holds v{}", what, one.slot,
                       slots[one.slot]->value);
        slots[one.slot] = {one.value, call.micro_batch};
      }
      for (const uint32_t slot : call.frees) slots.at(slot).reset();
      const StageProgram::Function& function = program.functions[call.function];
      switch (call.kind) {
        case StageCall::Kind::kRun:
          INTERNAL_CHECK_EQ(function.rank, static_cast<int64_t>(rank), "{}: it is another rank's", what);
          INTERNAL_CHECK(values_of(call.reads) == function.takes && values_of(call.writes) == function.gives,
                         "{}: it takes and gives other values", what);
          INTERNAL_CHECK(ran.emplace(call.function, call.micro_batch).second, "{}: it runs twice", what);
          break;
        case StageCall::Kind::kSend:
          INTERNAL_CHECK(sent[rank].emplace(call.message, std::pair(call.peer, values_of(call.reads))).second,
                         "{}: message {} is sent twice", what, call.message);
          on_their_way.insert(call.message);
          break;
        case StageCall::Kind::kSent:
          INTERNAL_CHECK(on_their_way.erase(call.message) == 1, "{}: message {} is not on its way", what, call.message);
          break;
        case StageCall::Kind::kReceive:
          INTERNAL_CHECK(received[rank].emplace(call.message, std::pair(call.peer, values_of(call.writes))).second,
                         "{}: message {} is received twice", what, call.message);
          break;
      }
    }
    INTERNAL_CHECK(on_their_way.empty(), "rank {} does not wait for message {}", rank, *on_their_way.begin());
    for (const auto& held : slots) INTERNAL_CHECK(!held, "rank {} keeps v{} to the end", rank, held->value);
  }
  INTERNAL_CHECK_EQ(ran.size(), program.functions.size() * static_cast<size_t>(program.micro_batches),
                    "functions that ran");
  for (size_t rank = 0; rank < sent.size(); ++rank)
    for (const auto& [one, other, verb] : {std::tuple(&sent, &received, "sends"), {&received, &sent, "receives"}})
      for (const auto& [message, with] : (*one)[rank]) {
        const auto& of_peer = other->at(static_cast<size_t>(with.first));
        const auto found = of_peer.find(message);
        INTERNAL_CHECK(found != of_peer.end() && found->second.first == static_cast<int64_t>(rank) &&
                           found->second.second == with.second,
                       "rank {} {} message {} alone", rank, verb, message);
      }
  const std::string deadlock = find_deadlock(program);
  INTERNAL_CHECK(deadlock.empty(), "{}", deadlock);
}

std::string to_text(const StageProgram& program) {
  std::string text;
  for (size_t rank = 0; rank < program.calls.size(); ++rank)
    for (const StageCall& call : program.calls[rank]) {
      text += str("rank {}: ", rank);
      const std::string what = name_of(program, call);
      switch (call.kind) {
        case StageCall::Kind::kRun:
          text += str("run {}", what);
          break;
        case StageCall::Kind::kSend:
          text += str("send {} to {}, message {}", what, call.peer, call.message);
          break;
        case StageCall::Kind::kSent:
          text += str("wait until {} has message {}", call.peer, call.message);
          break;
        case StageCall::Kind::kReceive:
          text += str("receive {} from {}, message {}", what, call.peer, call.message);
          break;
      }
      if (!call.reads.empty()) text += str(": {}", slots_text(call.reads));
      if (!call.writes.empty()) text += str(" -> {}", slots_text(call.writes));
      if (!call.frees.empty()) text += str("; frees {}", fmt::join(call.frees, ", "));
      text += '\n';
    }
  return text;
}

std::string hash_of(const StageProgram& program) {
  const std::string text = to_text(program);
  return hash_text(hash_bytes(std::as_bytes(std::span(text))));
}

uint64_t peak_slot_bytes(const StageProgram& program, int64_t rank, const std::vector<uint64_t>& bytes) {
  uint64_t now = 0, peak = 0;
  std::map<uint32_t, uint64_t> in_slot;
  for (const StageCall& call : program.calls.at(static_cast<size_t>(rank))) {
    for (const SlotValue& one : call.writes) now += in_slot[one.slot] = bytes.at(one.value);
    peak = std::max(peak, now);
    for (const uint32_t slot : call.frees) now -= in_slot.at(slot);
  }
  return peak;
}

}  // namespace stepc
