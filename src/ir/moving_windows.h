// Views of memory that a step only reads, at places that the host chooses anew (a slice of a data set at a position
// that advances): the window that the host has made is an input of the trace, Owner::kHost, and the view is the host's
// call.
#pragma once

#include <vector>

#include "ir/trace.h"

namespace stepc {

// Whether call `c` is such a view.
bool makes_moving_window(const Trace& trace, size_t c);

// In two recordings of one step, makes the views whose integers differ, or that are moving in one of them, moving in
// both. By call: whether it is one.
std::vector<bool> find_moving_windows(Trace& before, Trace& now);

}  // namespace stepc
