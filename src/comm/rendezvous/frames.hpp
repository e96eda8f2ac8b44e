// Messages on a connection: frames of four bytes of length, one of kind, and a payload. What is read is bounded before
// anything is kept of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tessera/base/bytes.hpp"

namespace tessera::comm {

// The first three are the handshake (token_proof.hpp), the others follow once a rank is admitted.
enum class FrameKind : std::uint8_t {
  challenge = 1,  // server: version, its nonce
  hello,          // rank: version, rank, ranks, its nonce, proof
  welcome,        // server: proof
  refusal,        // server: why
  announce,       // rank: channel, signature, and a blob where all ranks' blobs are wanted
  late,           // rank: channel, position, and whether the rank waits on the host or on its device
  failed,         // either: rank, verdict's channel and position, cause
  left,           // either: rank
  reported,       // either: nothing
  agreed,         // server: channel, position
  gathered,       // server: channel, position, every rank's blob
};
constexpr std::uint8_t last_frame_kind = static_cast<std::uint8_t>(FrameKind::gathered);

struct Frame {
  FrameKind kind;
  std::string_view payload;  // of the reader; until its next call
};

// Takes bytes as they come, in any pieces, and gives frames. Thread safety: one thread.
class FrameReader {
 public:
  explicit FrameReader(Bytes most_payload) : most_(most_payload) {}

  // From now on; for what has come already, too.
  void allow(Bytes most_payload) { most_ = most_payload; }

  void feed(std::string_view bytes);
  // None when no whole frame is there. Throws DataError for a kind that does not exist and a payload above the limit,
  // as soon as a frame's first five bytes have come.
  std::optional<Frame> next();

 private:
  Bytes most_;
  std::string bytes_;
  std::size_t begin_ = 0;  // of the next frame
};

void append_frame(std::string& out, FrameKind kind, std::string_view payload);

}  // namespace tessera::comm
