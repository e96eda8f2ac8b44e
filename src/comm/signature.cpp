// Signatures of the collectives, their text, and their bytes: the fields one after the other, then those of each
// further segment.
#include "comm/signature.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "comm/fields.hpp"
#include "tessera/base/error.hpp"

namespace tessera::comm {

std::string_view to_string(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::creation: return "make_communicator";
    case CollectiveKind::all_gather: return "all-gather";
    case CollectiveKind::reduce_scatter: return "reduce-scatter";
    case CollectiveKind::all_reduce: return "all-reduce";
    case CollectiveKind::broadcast: return "broadcast";
    case CollectiveKind::redistribute: return "redistribution";
    case CollectiveKind::barrier: return "barrier";
  }
  throw InternalError(fmt::format("no collective has the kind {}", static_cast<int>(kind)));
}

Signature signature_of(const AllGather& operation, std::uint64_t sequence) {
  return {.kind = CollectiveKind::all_gather, .label = operation.label, .bytes = operation.shard, .sequence = sequence};
}

Signature signature_of(const ReduceScatter& operation, std::uint64_t sequence) {
  return {.kind = CollectiveKind::reduce_scatter,
          .label = operation.label,
          .bytes = bytes_of(operation.wire, operation.shard_elements),
          .dtype = operation.wire,
          .divisor = operation.divisor,
          .sequence = sequence};
}

Signature signature_of(const AllReduce& operation, std::uint64_t sequence) {
  return {.kind = CollectiveKind::all_reduce,
          .label = operation.label,
          .bytes = operation.elements * size_of(DType::fp32),
          .dtype = DType::fp32,
          .divisor = operation.divisor,
          .sequence = sequence};
}

Signature signature_of(const Broadcast& operation, std::uint64_t sequence) {
  return {.kind = CollectiveKind::broadcast,
          .label = operation.label,
          .bytes = operation.size,
          .root = operation.root,
          .sequence = sequence};
}

Signature signature_of(const Redistribute& operation, std::uint64_t sequence) {
  Bytes bytes;
  for (const Transfer& transfer : operation.transfers) bytes += transfer.size;
  return {.kind = CollectiveKind::redistribute, .label = operation.label, .bytes = bytes, .sequence = sequence};
}

Signature signature_of(const Barrier& operation, std::uint64_t sequence) {
  return {.kind = CollectiveKind::barrier, .label = operation.label, .sequence = sequence};
}

Signature signature_of(std::span<const AllGather> segments, std::uint64_t sequence) {
  Signature signature = signature_of(segments.empty() ? AllGather{} : segments.front(), sequence);
  if (!segments.empty()) signature.further.gathers = segments.subspan(1);
  return signature;
}

Signature signature_of(std::span<const ReduceScatter> segments, std::uint64_t sequence) {
  Signature signature = signature_of(segments.empty() ? ReduceScatter{} : segments.front(), sequence);
  if (!segments.empty()) signature.further.reductions = segments.subspan(1);
  return signature;
}

Signature signature_of_creation(std::string_view label) { return {.kind = CollectiveKind::creation, .label = label}; }

std::string creation_label(std::string_view name, const std::optional<Group>& group) {
  return group ? fmt::format("{} over {}", name, group->text()) : std::string(name);
}

std::string communicator_name(std::string_view name, const std::optional<Group>& group) {
  return group ? fmt::format("{} over {}", name, group->name()) : std::string(name);
}

std::vector<std::vector<int>> partition_of(const std::vector<Opening>& openings) {
  constexpr int nobody = -1;
  const std::size_t count = openings.front().groups;
  std::vector<std::vector<int>> groups(count);
  for (std::size_t rank = 0; rank < openings.size(); ++rank) {
    const Opening& opening = openings[rank];
    if (opening.groups != count) throw DataError("the ranks' groups differ in number");
    std::vector<int>& group = groups[opening.group];
    if (group.size() <= opening.place) group.resize(opening.place + 1, nobody);
    int& there = group[opening.place];
    if (there != nobody) throw DataError(fmt::format("ranks {} and {} have one place in a group", there, rank));
    there = static_cast<int>(rank);
  }
  for (const std::vector<int>& group : groups) {
    if (group.empty() || std::find(group.begin(), group.end(), nobody) != group.end())
      throw DataError("a place in a group is nobody's");
  }
  return groups;
}

Signature segment_of(const Signature& signature, std::size_t segment) {
  if (segment == 0) {
    Signature first = signature;
    first.further = {};
    return first;
  }
  const FurtherSegments& further = signature.further;
  return further.gathers.empty() ? signature_of(further.reductions[segment - 1], signature.sequence)
                                 : signature_of(further.gathers[segment - 1], signature.sequence);
}

bool operator==(const FurtherSegments& a, const FurtherSegments& b) {
  const auto same = [](const auto& mine, const auto& theirs) {
    return signature_of(mine, 0) == signature_of(theirs, 0);
  };
  return std::equal(a.gathers.begin(), a.gathers.end(), b.gathers.begin(), b.gathers.end(), same) &&
         std::equal(a.reductions.begin(), a.reductions.end(), b.reductions.begin(), b.reductions.end(), same);
}

std::string brief(const Signature& signature, std::size_t segment) {
  std::string text = fmt::format("{} \"{}\"", to_string(signature.kind), segment_of(signature, segment).label);
  if (signature.segments() > 1) text += fmt::format(" (segment {} of {})", segment + 1, signature.segments());
  return text;
}

std::string describe(const Signature& signature, std::size_t segment) {
  std::string text = brief(signature, segment);
  if (signature.kind == CollectiveKind::creation) return text;
  text = fmt::format("#{} {}", signature.sequence, text);
  if (signature.kind == CollectiveKind::barrier) return text;
  const Signature part = segment_of(signature, segment);
  text += fmt::format(" of {} bytes", part.bytes.count());
  if (part.dtype) text += fmt::format(" {}", to_string(*part.dtype));
  if (part.divisor != 1.0f) text += fmt::format(", divided by {}", part.divisor);
  if (signature.kind == CollectiveKind::broadcast) text += fmt::format(" from rank {}", signature.root);
  return text;
}

// ---- as bytes ----

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
  const bool travels = code <= static_cast<std::uint8_t>(DType::int8) && code != static_cast<std::uint8_t>(DType::u8);
  if (!travels) throw DataError(fmt::format("no type has the code {}", code));
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

void append_opening(std::string& out, const Opening& opening) {
  FieldWriter writer(out);
  writer.text(opening.name);
  writer.number(opening.groups);
  writer.number(opening.group);
  writer.number(opening.place);
}

Opening read_opening(FieldReader& reader, int ranks) {
  Opening opening{.name = std::string(reader.text())};
  opening.groups = reader.number<std::uint32_t>();
  opening.group = reader.number<std::uint32_t>();
  opening.place = reader.number<std::uint32_t>();
  const auto all = static_cast<std::uint32_t>(ranks);
  const bool is_one = opening.groups <= all && opening.group < opening.groups && opening.place < all;
  if (is_one) return opening;
  throw DataError(fmt::format("place {} of group {} is none where {} ranks are parted into {} groups", opening.place,
                              opening.group, ranks, opening.groups));
}

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
      const std::size_t elements = elements_in(*part.dtype, part.bytes);
      reductions_.push_back(
          {.wire = *part.dtype, .shard_elements = elements, .divisor = part.divisor, .label = part.label});
    } else {
      gathers_.push_back({.shard = part.bytes, .label = part.label});
    }
  }
  signature_.further = {.gathers = gathers_, .reductions = reductions_};
}

}  // namespace tessera::comm
