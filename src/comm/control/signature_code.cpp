// The fields of a signature one after the other, then those of each further segment.
#include "comm/control/signature_code.hpp"

#include <fmt/format.h>

#include "comm/rendezvous/fields.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {
namespace {

constexpr std::uint8_t no_type = 0xff;

void encode_part(FieldWriter& writer, const Signature& part) {
  writer.number(part.bytes.count());
  writer.number(part.dtype ? static_cast<std::uint8_t>(*part.dtype) : no_type);
  writer.number(part.divisor);
  writer.text(part.label);
}

std::optional<DType> type_of(std::uint8_t code) {
  if (code == no_type) return std::nullopt;
  if (code > static_cast<std::uint8_t>(DType::fp16)) throw DataError(fmt::format("no type has the code {}", code));
  return static_cast<DType>(code);
}

CollectiveKind kind_of(std::uint8_t code) {
  if (code > static_cast<std::uint8_t>(CollectiveKind::barrier)) {
    throw DataError(fmt::format("no collective has the code {}", code));
  }
  return static_cast<CollectiveKind>(code);
}

void decode_part(FieldReader& reader, Signature& part) {
  part.bytes = Bytes(reader.number<std::uint64_t>());
  part.dtype = type_of(reader.number<std::uint8_t>());
  part.divisor = reader.number<float>();
  part.label = reader.text();
}

}  // namespace

void encode(const Signature& signature, std::string& out) {
  out.clear();
  FieldWriter writer(out);
  writer.number(static_cast<std::uint8_t>(signature.kind));
  writer.number(signature.sequence);
  writer.number(static_cast<std::int32_t>(signature.root));
  for (std::size_t segment = 0; segment < signature.segments(); ++segment) {
    encode_part(writer, segment_of(signature, segment));
  }
}

DecodedSignature::DecodedSignature(std::string_view code) : code_(code) {
  FieldReader reader(code_);
  signature_.kind = kind_of(reader.number<std::uint8_t>());
  signature_.sequence = reader.number<std::uint64_t>();
  signature_.root = reader.number<std::int32_t>();
  decode_part(reader, signature_);
  while (!reader.at_end()) {
    Signature part;
    decode_part(reader, part);
    const bool sums = signature_.kind == CollectiveKind::reduce_scatter;
    if (part.dtype.has_value() != sums || (!sums && signature_.kind != CollectiveKind::all_gather)) {
      throw DataError(fmt::format("a {} has no such segments", to_string(signature_.kind)));
    }
    if (sums) {
      const std::size_t elements = part.bytes.count() / size_of(*part.dtype).count();
      reductions_.push_back(
          {.wire = *part.dtype, .shard_elements = elements, .divisor = part.divisor, .label = part.label});
    } else {
      gathers_.push_back({.shard = part.bytes, .label = part.label});
    }
  }
  signature_.further = {.gathers = gathers_, .reductions = reductions_};
}

}  // namespace tessera::comm
