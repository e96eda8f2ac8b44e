// Proof of holding the job's token without sending it: each side sends a nonce, and the HMAC-SHA256 (RFC 2104) of what
// was said under the token. The rank proves itself first, then the server, so neither a stranger who connects nor one
// who listens at the address in rank 0's place takes part. What follows on the connection is neither encrypted nor
// signed.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::comm {

constexpr std::size_t nonce_bytes = 32;
constexpr std::size_t proof_bytes = 32;
using Nonce = std::array<char, nonce_bytes>;

// From the operating system's randomness.
Nonce fresh_nonce();

struct Handshake {
  Nonce server{};
  Nonce rank{};
  std::uint32_t rank_number = 0;
  std::uint32_t ranks = 0;
};
enum class Prover { rank, server };

// proof_bytes bytes.
std::string proof_of(std::string_view token, Prover prover, const Handshake& handshake);
// Takes the same time wherever the two differ.
bool same_proof(std::string_view a, std::string_view b);

}  // namespace tessera::comm
