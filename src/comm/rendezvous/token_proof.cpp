// All uses of libcrypto.
#include "comm/rendezvous/token_proof.hpp"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "comm/rendezvous/fields.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {

Nonce fresh_nonce() {
  Nonce nonce;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(nonce.size())) != 1) {
    throw UnavailableError("libcrypto's RAND_bytes failed: this system gives no random numbers");
  }
  return nonce;
}

std::string proof_of(std::string_view token, Prover prover, const Handshake& handshake) {
  std::string said;
  FieldWriter writer(said);
  writer.text(prover == Prover::rank ? "tessera rank" : "tessera server");
  writer.raw({handshake.server.data(), handshake.server.size()});
  writer.raw({handshake.rank.data(), handshake.rank.size()});
  writer.number(handshake.rank_number);
  writer.number(handshake.ranks);
  std::string proof(proof_bytes, '\0');
  unsigned int size = 0;
  const unsigned char* const done = HMAC(EVP_sha256(), token.data(), static_cast<int>(token.size()),
                                         reinterpret_cast<const unsigned char*>(said.data()), said.size(),
                                         reinterpret_cast<unsigned char*>(proof.data()), &size);
  if (done == nullptr || size != proof_bytes) throw InternalError("libcrypto's HMAC with SHA-256 failed");
  return proof;
}

bool same_proof(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace tessera::comm
