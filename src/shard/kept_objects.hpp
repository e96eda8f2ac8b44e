// Windows keep what they were given until their work has run (Window::keep).
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "tessera/device/event.hpp"
#include "tessera/device/stream.hpp"

namespace tessera {

// Objects end on the rank's thread, in a later call of the model, or with it.
class KeptObjects {
 public:
  using Objects = std::vector<std::shared_ptr<void>>;

  // Keeps them until the stream has come to where it is now.
  void keep(Objects objects, Stream& stream);
  // Lets go of those whose work has run.
  void release();

 private:
  struct Waiting {
    Event done;
    Objects objects;
  };
  std::vector<Waiting> waiting_;  // in the order of the stream
  std::vector<Event> spare_;      // of those that have gone
};

}  // namespace tessera
