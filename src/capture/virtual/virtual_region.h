// A scope in which tensors get sizes but no memory, for building a model that is larger than the machine: factories and
// initialisers above a few kilobytes are not executed. Afterwards materialise() (aten/virtual_memory.h) gives tensors
// their memory one at a time, and until then reading one is an error that says so.
#pragma once

#include <memory>
#include <string>

#include "capture/virtual/virtual_kernels.h"

namespace stepc {

class VirtualRegion {
 public:
  // For the calling thread. Throws UserError inside a recording or another region.
  VirtualRegion();
  ~VirtualRegion();
  VirtualRegion(const VirtualRegion&) = delete;
  VirtualRegion& operator=(const VirtualRegion&) = delete;

  VirtualKernels& kernels();
  // For regions in which tensors were made on the device that is not there: from here on calls run, and for one that
  // works on the device `refuse` throws what says so; nullptr: calls are virtual again.
  void run_and_refuse(void (*refuse)(const std::string& why));

 private:
  class Observer;
  struct Scope;
  std::shared_ptr<Observer> observer_;
  std::unique_ptr<Scope> scope_;
};

}  // namespace stepc
