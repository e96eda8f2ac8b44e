// Wakes a thread that polls descriptors. Thread safety: wake() from any thread.
#pragma once

#include <poll.h>

namespace tessera::comm {

class Wake {
 public:
  Wake();
  ~Wake();
  Wake(const Wake&) = delete;
  Wake& operator=(const Wake&) = delete;

  void wake() noexcept;
  pollfd polled() const { return {.fd = descriptor_, .events = POLLIN, .revents = 0}; }
  void clear() noexcept;  // by the thread that was woken

 private:
  int descriptor_;
};

}  // namespace tessera::comm
