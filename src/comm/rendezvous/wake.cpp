// An eventfd(2).
#include "comm/rendezvous/wake.hpp"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace tessera::comm {

Wake::Wake() : descriptor_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  if (descriptor_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
}
Wake::~Wake() { ::close(descriptor_); }

void Wake::wake() noexcept { static_cast<void>(::eventfd_write(descriptor_, 1)); }
void Wake::clear() noexcept {
  eventfd_t count = 0;
  static_cast<void>(::eventfd_read(descriptor_, &count));
}

}  // namespace tessera::comm
