// DrawsLeaveNoTrace: as long as it lives, what is run may draw from the process's CPU generator; the program goes on
// drawing where it was.
#pragma once

#include <ATen/CPUGeneratorImpl.h>

#include "aten/generator_snapshot.h"

namespace stepc {

class DrawsLeaveNoTrace {
 public:
  DrawsLeaveNoTrace() = default;
  ~DrawsLeaveNoTrace() { begin_again(); }
  DrawsLeaveNoTrace(const DrawsLeaveNoTrace&) = delete;
  DrawsLeaveNoTrace& operator=(const DrawsLeaveNoTrace&) = delete;

  // Puts the generator where it was.
  void begin_again() { write_generator(at::detail::getDefaultCPUGenerator(), before_); }

 private:
  GeneratorSnapshot before_ = read_generator(at::detail::getDefaultCPUGenerator());
};

}  // namespace stepc
