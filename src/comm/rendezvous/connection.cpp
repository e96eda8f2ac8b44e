// Moving bytes between a socket and its frames.
#include "comm/rendezvous/connection.hpp"

#include <array>

namespace tessera::comm {
namespace {

// At a time, so that one connection that never stops does not keep the others waiting.
constexpr int most_reads = 8;
constexpr std::size_t read_bytes = 32 << 10;

}  // namespace

bool Connection::receive() {
  std::array<char, read_bytes> bytes;
  for (int turn = 0; turn < most_reads; ++turn) {
    const std::optional<std::size_t> count = socket_.read_some(bytes);
    if (!count) return false;
    reader_.feed({bytes.data(), *count});
    if (*count < bytes.size()) return true;
  }
  return true;
}

bool Connection::flush() {
  while (has_to_send()) {
    const std::optional<std::size_t> count = socket_.write_some(std::string_view(out_).substr(sent_));
    if (!count) return false;
    if (*count == 0) return true;
    sent_ += *count;
  }
  out_.clear();
  sent_ = 0;
  return true;
}

}  // namespace tessera::comm
