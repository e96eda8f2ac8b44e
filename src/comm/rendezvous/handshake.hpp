// The three messages that make a connection a rank's: challenge, hello, welcome (or refusal). Versions come first in
// each, so that other builds are told apart from strangers.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "comm/rendezvous/token_proof.hpp"
#include "tessera/base/bytes.hpp"

namespace tessera::comm {

// Of the messages' form. Ranks of other versions do not understand each other.
constexpr std::uint32_t rendezvous_version = 1;
constexpr Bytes most_handshake_payload{512};

// Payloads. What is no such payload is a DataError, another version a UsageError.
std::string challenge_payload(const Nonce& server);
Nonce read_challenge(std::string_view payload);

// `handshake` is whole but for the proof, which this adds.
std::string hello_payload(std::string_view token, const Handshake& handshake);
struct Hello {
  Handshake handshake;
  bool holds_token;
};
Hello read_hello(std::string_view payload, std::string_view token, const Nonce& server);

std::string welcome_payload(std::string_view token, const Handshake& handshake);
bool is_welcome(std::string_view payload, std::string_view token, const Handshake& handshake);

}  // namespace tessera::comm
