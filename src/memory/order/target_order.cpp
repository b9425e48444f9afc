#include "memory/order/target_order.h"

#include <algorithm>
#include <set>

#include "memory/order/live_bytes.h"

namespace stepc {
namespace {

class Scheduler {
 public:
  Scheduler(const OrderProblem& problem, const Branches& branches, const UnitOrder& base, uint64_t target)
      : problem_(problem),
        branches_(branches),
        base_(base),
        target_(static_cast<int64_t>(target)),
        after_(successors(problem)),
        bytes_(problem),
        waits_for_(problem.units.size(), 0),
        done_(problem.units.size(), false),
        branch_waits_for_(branches.units.size(), 0),
        step_of_branch_(branches.units.size()),
        readers_(problem.values.size()) {
    for (uint32_t u = 0; u < after_.size(); ++u) {
      for (uint32_t later : after_[u]) {
        ++waits_for_[later];
        const uint32_t branch = branches_.branch_of[later];
        if (branch != kNone && branches_.branch_of[u] != branch) ++branch_waits_for_[branch];
      }
    }
    for (uint32_t v = 0; v < problem.values.size(); ++v)
      for (uint32_t user : problem.values[v].users)
        if (const uint32_t branch = branches_.branch_of[user];
            branch != kNone && (readers_[v].empty() || readers_[v].back() != branch))
          readers_[v].push_back(branch);
  }

  std::optional<UnitOrder> run() {
    for (uint32_t u = 0; u < waits_for_.size(); ++u)
      if (waits_for_[u] == 0) look_at(u);
    for (uint32_t b = 0; b < branch_waits_for_.size(); ++b)
      if (branch_waits_for_[b] == 0) open_branches_.insert(b);
    size_t next = 0;
    while (order_.size() < problem_.units.size()) {
      if (run_free_unit() || run_branch(false)) continue;
      while (next < base_.size() && (done_[base_[next]] || branches_.branch_of[base_[next]] != kNone)) ++next;
      if (next == base_.size() ? !run_branch(true) : !run_if_it_fits(base_[next])) return std::nullopt;
    }
    return std::move(order_);
  }

 private:
  bool fits(const LiveBytes::Step& step) const { return bytes_.live() + step.rise <= target_; }

  // Notes whether a ready unit frees memory.
  void look_at(uint32_t unit) {
    if (bytes_.look(unit).net < 0) free_units_.insert(unit);
  }
  bool run_free_unit() {
    for (uint32_t unit : free_units_) {
      if (!fits(bytes_.look(unit))) continue;
      run(unit);
      return true;
    }
    return false;
  }
  bool run_if_it_fits(uint32_t unit) {
    if (!fits(bytes_.look(unit))) return false;
    run(unit);
    return true;
  }

  void run(uint32_t unit) {
    bytes_.run(unit);
    order_.push_back(unit);
    done_[unit] = true;
    free_units_.erase(unit);
    for (uint32_t value : problem_.units[unit].reads) {
      for (uint32_t branch : readers_[value]) step_of_branch_[branch].reset();
      if (bytes_.users_left(value) != 1) continue;
      for (uint32_t user : problem_.values[value].users)
        if (!done_[user] && waits_for_[user] == 0) look_at(user);
    }
    const uint32_t own = branches_.branch_of[unit];
    if (own != kNone) step_of_branch_[own].reset();
    for (uint32_t later : after_[unit]) {
      if (--waits_for_[later] == 0) look_at(later);
      const uint32_t branch = branches_.branch_of[later];
      if (branch != kNone && branch != own && --branch_waits_for_[branch] == 0) open_branches_.insert(branch);
    }
  }

  LiveBytes::Step look_at_branch(uint32_t branch) {
    if (step_of_branch_[branch]) return *step_of_branch_[branch];
    LiveBytes::Step all;
    std::vector<uint32_t> ran;
    for (uint32_t unit : branches_.units[branch]) {
      if (done_[unit]) continue;
      const LiveBytes::Step step = bytes_.run(unit);
      all.rise = std::max(all.rise, all.net + step.rise);
      all.net += step.net;
      ran.push_back(unit);
    }
    for (size_t i = ran.size(); i-- > 0;) bytes_.take_back(ran[i]);
    step_of_branch_[branch] = all;
    return all;
  }
  // Runs the branch that rises least of those that are ready and fit, and if not `any` free memory.
  bool run_branch(bool any) {
    uint32_t best = kNone;
    LiveBytes::Step best_step;
    for (auto it = open_branches_.begin(); it != open_branches_.end();) {
      const uint32_t branch = *it++;
      const LiveBytes::Step step = look_at_branch(branch);
      if (!fits(step) || (!any && step.net >= 0)) continue;
      if (best != kNone && step.rise >= best_step.rise) continue;
      best = branch;
      best_step = step;
    }
    if (best == kNone) return false;
    open_branches_.erase(best);
    for (uint32_t unit : branches_.units[best])
      if (!done_[unit]) run(unit);
    return true;
  }

  const OrderProblem& problem_;
  const Branches& branches_;
  const UnitOrder& base_;
  int64_t target_;
  std::vector<std::vector<uint32_t>> after_;
  LiveBytes bytes_;
  UnitOrder order_;
  std::vector<uint32_t> waits_for_;  // by unit: units that must run before it and have not
  std::vector<bool> done_;
  std::set<uint32_t> free_units_;  // ready, and they leave less live than before
  std::vector<uint32_t> branch_waits_for_;
  std::set<uint32_t> open_branches_;                            // they wait for nothing
  std::vector<std::optional<LiveBytes::Step>> step_of_branch_;  // as long as it holds
  std::vector<std::vector<uint32_t>> readers_;                  // by value: branches
};

}  // namespace

std::optional<UnitOrder> target_order(const OrderProblem& problem, const Branches& branches, const UnitOrder& base,
                                      uint64_t target_bytes) {
  return Scheduler(problem, branches, base, target_bytes).run();
}

}  // namespace stepc
