// Frames out of bytes, and bytes out of frames.
#include "comm/rendezvous/frames.hpp"

#include <fmt/format.h>

#include "comm/rendezvous/fields.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

constexpr std::size_t head_bytes = sizeof(std::uint32_t) + sizeof(std::uint8_t);

}  // namespace

void FrameReader::feed(std::string_view bytes) {
  bytes_.erase(0, begin_);
  begin_ = 0;
  bytes_.append(bytes);
}

std::optional<Frame> FrameReader::next() {
  const std::string_view there = std::string_view(bytes_).substr(begin_);
  if (there.size() < head_bytes) return std::nullopt;
  FieldReader head(there.substr(0, head_bytes));
  const auto size = head.number<std::uint32_t>();
  const auto kind = head.number<std::uint8_t>();
  if (kind == 0 || kind > last_frame_kind) throw DataError(fmt::format("no message has the kind {}", kind));
  if (size > most_.count()) {
    throw DataError(fmt::format("a message of {} bytes is above the limit of {}", size, most_.count()));
  }
  if (there.size() - head_bytes < size) return std::nullopt;
  begin_ += head_bytes + size;
  return Frame{.kind = static_cast<FrameKind>(kind), .payload = there.substr(head_bytes, size)};
}

void append_frame(std::string& out, FrameKind kind, std::string_view payload) {
  FieldWriter writer(out);
  writer.number(static_cast<std::uint32_t>(payload.size()));
  writer.number(static_cast<std::uint8_t>(kind));
  writer.raw(payload);
}

}  // namespace tessera::comm
