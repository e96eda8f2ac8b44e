// The base of what stays where it was made: it is neither copied nor moved.
#pragma once

namespace tessera::comm {

class Pinned {
 public:
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 protected:
  Pinned() = default;
  ~Pinned() = default;
};

}  // namespace tessera::comm
