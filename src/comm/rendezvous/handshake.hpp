// A connection becomes a rank's by three messages, challenge, hello, welcome (or refusal), in which both sides prove
// that they hold the job's token without sending it. Versions come first in each, so that other builds are told apart
// from strangers.
//
// Each side sends a nonce, and the HMAC-SHA256 (RFC 2104) of what was said under the token. The rank proves itself
// first, then the server, so neither a stranger who connects nor one who listens at the address in rank 0's place takes
// part. What follows on the connection is neither encrypted nor signed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tessera/base/bytes.hpp"

namespace tessera::comm {

// ---- proofs ----

constexpr std::size_t nonce_bytes = 32;
constexpr std::size_t proof_bytes = 32;

// nonce_bytes from the operating system's randomness.
std::string fresh_nonce();

// Both sides hold it: the token, and the launcher's name of the job, which is no secret but keeps two jobs apart that
// meet at one port.
struct Secret {
  std::string token = "";
  std::string job = "";  // "SLURM job 101, step 0"; empty: not known
};

struct Handshake {
  std::string server = "";  // nonces
  std::string rank = "";
  std::uint32_t rank_number = 0;
  std::uint32_t ranks = 0;
};

// ---- messages ----

// This is the version of the messages' form. Ranks of other versions do not understand each other.
constexpr std::uint32_t rendezvous_version = 6;
constexpr Bytes most_handshake_payload{512};

// Payloads. What is no such payload is a DataError, another version a UsageError.
std::string challenge_payload(std::string_view server);
std::string read_challenge(std::string_view payload);

// `handshake` is whole but for the proof, which this adds.
std::string hello_payload(const Secret& secret, const Handshake& handshake);
struct Hello {
  Handshake handshake;
  std::string job;  // as the rank says; fit for a line of text
  bool is_of_job;   // says the same of the job
  bool holds_secret;
};
Hello read_hello(std::string_view payload, const Secret& secret, std::string_view server);

std::string welcome_payload(const Secret& secret, const Handshake& handshake);
bool is_welcome(std::string_view payload, const Secret& secret, const Handshake& handshake);

// A refusal is obeyed where the server has proved that it is the job's own.
std::string refusal_payload(const Secret& secret, const Handshake& handshake, std::string_view why);
struct Refusal {
  std::string why;  // fit for a line of text
  bool proved;
};
Refusal read_refusal(std::string_view payload, const Secret& secret, const Handshake& handshake);

}  // namespace tessera::comm
