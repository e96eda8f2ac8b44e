// Signatures as bytes: equal signatures have equal bytes, so ranks compare those, and read them only to tell how they
// differ.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "comm/signature.hpp"

namespace tessera::comm {

// Replaces what is in `out`; allocates nothing where its capacity is enough.
void encode(const Signature& signature, std::string& out);

// A signature that owns what it refers to. Its pointers are null: they are no part of a signature.
class DecodedSignature {
 public:
  explicit DecodedSignature(std::string_view code);  // throws DataError
  DecodedSignature(const DecodedSignature&) = delete;
  DecodedSignature& operator=(const DecodedSignature&) = delete;

  const Signature& operator*() const { return signature_; }

 private:
  std::string code_;
  std::vector<AllGather> gathers_;
  std::vector<ReduceScatter> reductions_;
  Signature signature_;
};

}  // namespace tessera::comm
