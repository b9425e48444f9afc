// Stands for the header of this name that the torch wheel lacks (see rendezvous/store.h). c10d's header holds these by
// pointers and never looks into them.
#pragma once

namespace gloo::transport {

class Device;
class UnboundBuffer {
 public:
  virtual ~UnboundBuffer();
};

}  // namespace gloo::transport
