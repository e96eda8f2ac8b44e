// Attempts, one after the other, at each of the endpoint's addresses.
#include "comm/rendezvous/join.hpp"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <vector>

#include "comm/rendezvous/handshake.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

using std::chrono::steady_clock;

constexpr std::chrono::milliseconds between_attempts{50};
constexpr std::chrono::milliseconds longest_attempt{5'000};

// The server's side of the connection has nothing that this rank wants.
[[noreturn]] void refuse(const JoinOptions& options, const std::string& why) {
  throw UsageError(
      fmt::format("rank {} cannot join the ranks at {}: {}", options.rank, to_string(options.endpoint), why));
}

struct Attempt {
  const JoinOptions& options;
  Connection connection;
  steady_clock::time_point deadline;
  std::string why;  // it came to nothing

  std::optional<Frame> await() {
    for (;;) {
      if (const std::optional<Frame> frame = connection.next()) return frame;
      if (!wait_for(connection.descriptor(), POLLIN, deadline))
        return why = "it accepts connections and says nothing", std::nullopt;
      if (!connection.receive()) {
        const std::optional<Frame> last_words = connection.next();
        if (!last_words) why = "it ended the connection";
        return last_words;
      }
    }
  }

  Nonce nonce_of(const Frame& challenge) const {
    try {
      return read_challenge(challenge.payload);
    } catch (const UsageError& error) {
      refuse(options, error.what());
    }
  }

  bool shake_hands() {
    Handshake handshake{.server = {},
                        .rank = fresh_nonce(),
                        .rank_number = static_cast<std::uint32_t>(options.rank),
                        .ranks = static_cast<std::uint32_t>(options.ranks)};
    const std::optional<Frame> challenge = await();
    if (!challenge) return false;
    if (challenge->kind != FrameKind::challenge) throw DataError("its first message is no challenge");
    handshake.server = nonce_of(*challenge);
    connection.send(FrameKind::hello, hello_payload(options.token, handshake));
    if (!connection.flush()) return why = "it ended the connection", false;
    const std::optional<Frame> answer = await();
    if (!answer) return false;
    if (answer->kind == FrameKind::refusal) refuse(options, std::string(answer->payload));
    if (is_welcome(answer->payload, options.token, handshake)) return true;
    refuse(options, "what answers there does not hold the job's token (TESSERA_TOKEN)");
  }
};

std::optional<Connection> try_once(const JoinOptions& options, const Address& address, steady_clock::time_point end,
                                   std::string& why) {
  const auto deadline = std::min(end, steady_clock::now() + longest_attempt);
  Socket socket = connect_to(address, deadline, why);
  if (!socket.is_open()) return std::nullopt;
  Attempt attempt{
      .options = options, .connection = {std::move(socket), most_handshake_payload}, .deadline = deadline, .why = {}};
  try {
    if (attempt.shake_hands()) return std::move(attempt.connection);
    why = attempt.why;
  } catch (const DataError& error) {
    why = error.what();
  }
  return std::nullopt;
}

}  // namespace

Connection join(const JoinOptions& options) {
  const auto end = steady_clock::now() + options.start_timeout;
  std::string why;
  do {
    for (const Address& address : resolve(options.endpoint)) {
      if (auto connection = try_once(options, address, end, why)) return std::move(*connection);
    }
    std::this_thread::sleep_for(between_attempts);
  } while (steady_clock::now() < end);
  throw CommunicationError(fmt::format(
      "rank {} waited up to {:.3g} s for rank 0 to answer at {}, in vain ({}); is rank 0 running, and is that its "
      "address?",
      options.rank, std::chrono::duration<double>(options.start_timeout).count(), to_string(options.endpoint), why));
}

}  // namespace tessera::comm
