// The handshake's payloads have their form here, and all uses of libcrypto are here.
#include "comm/rendezvous/handshake.hpp"

#include <fmt/format.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "comm/rendezvous/wire.hpp"
#include "comm/start.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {

// ---- proofs ----

std::string fresh_nonce() {
  std::string nonce(nonce_bytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(nonce.data()), static_cast<int>(nonce.size())) != 1) {
    throw UnavailableError("libcrypto's RAND_bytes failed: this system gives no random numbers");
  }
  return nonce;
}

namespace {

enum class Prover { rank, server, refusing_server };

constexpr std::size_t most_said = 240;  // characters of a refusal or of a job

// proof_bytes bytes.
std::string proof_of(const Secret& secret, Prover prover, const Handshake& handshake, std::string_view why = "") {
  constexpr const char* names[] = {"tessera rank", "tessera server", "tessera refusal"};
  const std::string& token = secret.token;
  std::string said;
  FieldWriter writer(said);
  writer.text(names[static_cast<std::size_t>(prover)]);
  writer.text(secret.job);
  writer.text(why);
  writer.raw(handshake.server);
  writer.raw(handshake.rank);
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

// Takes the same time wherever the two differ.
bool same_proof(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

// ---- messages ----

constexpr std::string_view magic = "TESSERA\n";

void begin(FieldWriter& writer) {
  writer.raw(magic);
  writer.number(rendezvous_version);
}

void read_begin(FieldReader& reader) {
  if (reader.raw(magic.size()) != magic) throw DataError("the other side is no rank of Tessera's");
  const auto version = reader.number<std::uint32_t>();
  if (version == rendezvous_version) return;
  throw UsageError(fmt::format("version {} of the rendezvous met version {}: run the same build on all ranks",
                               rendezvous_version, version));
}

}  // namespace

std::string challenge_payload(std::string_view server) {
  std::string payload;
  FieldWriter writer(payload);
  begin(writer);
  writer.raw(server);
  return payload;
}

std::string read_challenge(std::string_view payload) {
  FieldReader reader(payload);
  read_begin(reader);
  const std::string_view nonce = reader.raw(nonce_bytes);
  reader.require_end();
  return std::string(nonce);
}

std::string hello_payload(const Secret& secret, const Handshake& handshake) {
  std::string payload;
  FieldWriter writer(payload);
  begin(writer);
  writer.number(handshake.rank_number);
  writer.number(handshake.ranks);
  writer.raw(handshake.rank);
  writer.text(std::string_view(secret.job).substr(0, most_said));
  writer.raw(proof_of(secret, Prover::rank, handshake));
  return payload;
}

Hello read_hello(std::string_view payload, const Secret& secret, std::string_view server) {
  FieldReader reader(payload);
  read_begin(reader);
  Hello hello{};
  hello.handshake.server = server;
  hello.handshake.rank_number = reader.number<std::uint32_t>();
  hello.handshake.ranks = reader.number<std::uint32_t>();
  hello.handshake.rank = reader.raw(nonce_bytes);
  const std::string_view job = reader.text();
  hello.job = printable(job, most_said);
  hello.is_of_job = job == std::string_view(secret.job).substr(0, most_said);
  const std::string_view proof = reader.raw(proof_bytes);
  reader.require_end();
  hello.holds_secret = same_proof(proof, proof_of(secret, Prover::rank, hello.handshake));
  return hello;
}

std::string welcome_payload(const Secret& secret, const Handshake& handshake) {
  return proof_of(secret, Prover::server, handshake);
}

bool is_welcome(std::string_view payload, const Secret& secret, const Handshake& handshake) {
  return same_proof(payload, proof_of(secret, Prover::server, handshake));
}

std::string refusal_payload(const Secret& secret, const Handshake& handshake, std::string_view why) {
  why = why.substr(0, most_said);
  std::string payload;
  FieldWriter writer(payload);
  writer.text(why);
  writer.raw(proof_of(secret, Prover::refusing_server, handshake, why));
  return payload;
}

Refusal read_refusal(std::string_view payload, const Secret& secret, const Handshake& handshake) {
  FieldReader reader(payload);
  const std::string_view why = reader.text();
  const std::string_view proof = reader.raw(proof_bytes);
  reader.require_end();
  return {.why = printable(why, most_said),
          .proved = same_proof(proof, proof_of(secret, Prover::refusing_server, handshake, why))};
}

}  // namespace tessera::comm
