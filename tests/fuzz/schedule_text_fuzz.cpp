// The text of a Schedule: what is taken reads back as it was written, is verified or refused with its kernels, and has
// its price.
#include <cstdlib>

#include "cost/named_target.h"
#include "plan/simulate.h"
#include "schedule/schedule.h"
#include "schedule/verify_kernels.h"
#include "tests/fuzz/fuzz_input.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stepc;
  return fuzz_one([&] {
    const Schedule schedule = parse_schedule(fuzz_text(data, size));
    const std::string text = to_text(schedule);
    if (to_text(parse_schedule(text)) != text) std::abort();
    try {
      verify(schedule);
      verify_kernels(schedule);  // as the executor does before it binds them
      const Target target = schedule.features.sm > 0 ? named_target("h100") : Target();
      if (!(simulate(schedule, target).seconds >= 0)) std::abort();
    } catch (const InternalError&) {  // the text is good, what it says is not
    }
  });
}
