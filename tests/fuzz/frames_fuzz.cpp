// A stranger may send anything to the rendezvous before it is admitted, and a rank after: frames in pieces, and each
// payload read as a hello, as a signature, and as what a rank says of a communicator.
#include "comm/rendezvous/wire.hpp"

#include "comm/rendezvous/handshake.hpp"
#include "comm/signature.hpp"
#include "fuzz.hpp"
#include "tessera/base/error.hpp"

using namespace tessera;
using namespace tessera::comm;

namespace {

void read_payload(std::string_view payload) {
  try {
    fuzz::require(!read_hello(payload, {.token = "a token of this test"}, std::string(nonce_bytes, '\0')).holds_secret,
                  "a proof was guessed");
  } catch (const DataError&) {
  } catch (const UsageError&) {  // another version
  }
  try {
    FieldReader reader(payload);
    fuzz::require(read_opening(reader, 6).group < 6, "a group of more ranks than there are");
  } catch (const DataError&) {
  }
  const DecodedSignature signature(payload);
  std::string code;
  encode(*signature, code);
}

}  // namespace

void fuzz::read_input(std::string_view input) {
  FrameReader reader(Bytes(4096));
  const std::size_t piece = input.empty() ? 1 : static_cast<unsigned char>(input.front()) % 7 + 1;
  for (std::size_t begin = 0; begin < input.size(); begin += piece) {
    reader.feed(input.substr(begin, piece));
    while (const auto frame = reader.next()) {
      try {
        read_payload(frame->payload);
      } catch (const DataError&) {  // the next frame may be one
      }
    }
  }
}
