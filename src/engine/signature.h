// Signature: everything outside a recording that decides what a step does: the batch's shapes, which gradients are
// asked for and exist, training flags, and the ambient state (threads, autocast, grad mode, determinism, matmul
// precision). Equal signatures may share a plan.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "capture/recorder.h"
#include "engine/program.h"

namespace stepc {

// Compact and exact; compared byte by byte.
std::string signature_of(const Program& program, const std::vector<OwnedTensor>& owned);

// The same in words, for log lines: "batch 0" -> "i64[8, 512]", "threads" -> "2".
std::map<std::string, std::string> describe_signature(const std::vector<OwnedTensor>& owned);

// "new shape: batch 0 i64[8, 512] -> i64[8, 384]": what separates `after` from `before`, in one line.
std::string explain_change(const std::map<std::string, std::string>& before,
                           const std::map<std::string, std::string>& after);

}  // namespace stepc
