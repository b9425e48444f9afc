// Agreement of two recordings of one step: whether they are the same program, and which of the numbers that reached the
// host were passed on, decided what came next, or did neither.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/trace.h"

namespace stepc {

struct Agreement {
  // One sentence each; a trace that may be replayed has neither.
  std::string difference;  // the two took different paths: another branch, another shape
  std::string obstacle;    // the same path, but a number that no trace explains took part in it
  Trace trace;
};

// A number that a call read on the host and that
//   differs between the recordings and is passed to an operator or returned   becomes a ReadNumber there
//   is the same in both                                                       becomes a guard
//   differs, is a bool or integer and is passed on nowhere                    is a difference: another branch
//   differs, is a float and is passed on nowhere                              is an obstacle: its use cannot be seen
// A number that the program compares counts as passed on nowhere. Numbers inside the calls of a shadow event may differ
// freely: the event supplies them.
Agreement agree(const Trace& before, const Trace& now);

// The same for a replay whose host code runs beside it at every step (capture/tracer.h), so that nothing need be known
// of what numbers decide: what is compared are the calls. A real number that differs becomes one that the host supplies
// (a shadow event of that call alone, without a key), a number that is read a kRead event, and so any other call among
// the reads, which the host makes itself. `before` may be the trace of an earlier agreement: what was supplied there
// stays so. A constant with other bytes becomes a tensor of the host's. An obstacle: host code that computes, data of
// the host's that the step changes after the host has read something.
Agreement agree_on_calls(const Trace& before, const Trace& now);

// Whether the call makes memory that the host then fills with data of its own.
bool makes_host_data(const Trace& trace, const Call& call);

// Whether a run of the step comes to a stop there, and the program goes on: a pause or a read.
bool is_stop(const HostEvent& event);
// The pause of a step that pauses, among the trace's events.
std::optional<size_t> find_pause(const Trace& trace);

// By external: the kRead or kPause event, among trace.events, at whose end the host makes its data at the earliest;
// none: before all of them, or it is no data of the host's.
std::vector<std::optional<size_t>> events_of_host_data(const Trace& trace);

// What the call read: its only result, or the count of elements where it made a tensor whose shape depends on data.
Arg number_read(const Trace& trace, const HostRead& read);

// Whether two numbers are the same bit by bit; false for what is no number.
bool same_number(const Arg& a, const Arg& b);

}  // namespace stepc
