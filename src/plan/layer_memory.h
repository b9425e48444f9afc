// The memory of a model of many equal layers, from the Schedule of one of few. At each moment of the few, the layers
// that there are not hold what those hold that are not at work: what the forward pass has made for the backward pass,
// or gradients for the update. So which moment is the peak depends on the number of layers: of two it may be the loss,
// of many the backward pass or the update.
//
//                              two layers, of which each keeps 3, and gradients of 1       of 10
//   the loss                   3 + 3                                    + logits  20        50
//   the first backward pass    3 + 3            + what a layer works on            5        35
//   the last                   3     + 1        + what a layer works on            5        17
#pragma once

#include <cstdint>
#include <vector>

#include "schedule/schedule.h"

namespace stepc {

class LayerMemory {
 public:
  LayerMemory() = default;
  explicit LayerMemory(const Schedule& schedule);

  // Of the arena, if there are `more` further layers for each that there is.
  [[nodiscard]] double arena_bytes(double more) const;
  // With what outlives the step.
  [[nodiscard]] double peak_bytes(double more) const;

  // By instruction of a Schedule: what as many further layers hold as there are.
  static std::vector<double> bytes_of_others(const Schedule& schedule);

 private:
  struct Moment {
    double live = 0;       // with the layers that there are
    double of_others = 0;  // what as many further layers would hold
  };
  std::vector<Moment> moments_;  // those that can be the peak
  double unused_ = 0;            // of the arena at the peak: gaps between what is live
  double own_ = 0, own_of_layers_ = 0;
};

}  // namespace stepc
