#include "loops/expand_math.h"

namespace stepc {

LoopProgram expand_math(const LoopProgram& program) { return program; }

}  // namespace stepc
