// Reading blocks. What is parsed is what was checked: a header is taken out of checked blocks, and not read again.
#include "checkpoint/checked_file.hpp"

#include <fmt/format.h>

#include <utility>
#include <vector>

#include "checkpoint/checksum.hpp"
#include "tessera/base/error.hpp"

namespace tessera::checkpoint {

namespace {

constexpr std::size_t most_names = 8;  // of tensors, in an error
// Bytes that are read and then summed up, while they are still in the cache.
constexpr std::size_t summed_at_once = std::size_t{256} << 10;

// The block as spans without gaps, none longer than a piece: the parts, and the staging between them.
std::vector<std::span<std::byte>> fill_up(std::span<const BlockPart> parts, Bytes block, std::span<std::byte> staging) {
  std::vector<std::span<std::byte>> spans;
  std::uint64_t end = 0;
  const auto add = [&](std::span<std::byte> span) {
    for (; span.size() > summed_at_once; span = span.subspan(summed_at_once))
      spans.push_back(span.first(summed_at_once));
    spans.push_back(span);
  };
  const auto fill_to = [&](std::uint64_t place) {
    if (place < end) throw UsageError("checkpoint: parts of a block overlap");
    if (place == end) return;
    if (staging.size() < place) {
      throw UsageError(fmt::format("checkpoint: a staging of {} bytes is not that of a block", staging.size()));
    }
    add(staging.subspan(end, place - end));
  };
  for (const BlockPart& part : parts) {
    if (part.first > block || part.to.size() > (block - part.first).count()) {
      throw UsageError(fmt::format("checkpoint: {} bytes from byte {} are outside a block of {}", part.to.size(),
                                   part.first.count(), block.count()));
    }
    if (part.to.empty()) continue;
    fill_to(part.first.count());
    add(part.to);
    end = part.first.count() + part.to.size();
  }
  fill_to(block.count());
  return spans;
}

// The first of the spans that together are a piece, and at least one.
std::size_t spans_of_piece(std::span<const std::span<std::byte>> spans) {
  std::size_t count = 1;
  for (std::size_t bytes = spans[0].size(); count < spans.size(); ++count) {
    bytes += spans[count].size();
    if (bytes > summed_at_once) break;
  }
  return count;
}

}  // namespace

CheckedFile::CheckedFile(const std::filesystem::path& folder, ManifestFile expected)
    : path_(folder / expected.name), expected_(std::move(expected)), file_(File::open_to_read(path_)) {}

std::string CheckedFile::size_fault() const {
  const Bytes size(file_.size());
  if (size == expected_.size) return {};
  const std::string lost = size < expected_.size ? contents(size, expected_.size - size) : "";
  return fmt::format("{}: has {} bytes, and {} by the manifest: {}{}", path_.string(), size.count(),
                     expected_.size.count(),
                     size < expected_.size ? "cut off, or another checkpoint's" : "another checkpoint's",
                     lost.empty() ? "" : fmt::format("; {} missing", lost));
}

Bytes CheckedFile::block_size(std::uint64_t block) const {
  if (block >= expected_.blocks.size()) {
    throw UsageError(fmt::format("{}: has no block {}", path_.string(), block));
  }
  return std::min(checkpoint_block, expected_.size - block * checkpoint_block);
}

void CheckedFile::read_block(std::uint64_t block, std::span<const BlockPart> parts,
                             std::span<std::byte> staging) const {
  const Bytes first = block * checkpoint_block;
  const Bytes size = block_size(block);
  const std::vector<std::span<std::byte>> spans = fill_up(parts, size, staging);
  if (read_sum(first, spans) == expected_.blocks[block]) return;
  const std::string inside = contents(first, size);
  throw DataError(fmt::format(
      "{}: bytes {} to {} do not match the manifest's checksum: damaged, or another checkpoint's{}", path_.string(),
      first.count(), (first + size).count() - 1, inside.empty() ? "" : fmt::format("; {} in them", inside)));
}

std::uint32_t CheckedFile::read_sum(Bytes first, std::span<const std::span<std::byte>> spans) const {
  std::uint32_t checksum = 0;
  while (!spans.empty()) {
    const std::span<const std::span<std::byte>> now = spans.first(spans_of_piece(spans));
    file_.read_scattered(first.count(), now);
    for (const std::span<std::byte> span : now) {
      checksum = extend_crc32c(checksum, span);
      first += Bytes(span.size());
    }
    spans = spans.subspan(now.size());
  }
  return checksum;
}

void CheckedFile::expect(std::uint64_t block) const {
  file_.expect((block * checkpoint_block).count(), checkpoint_block);
}

void CheckedFile::read(Bytes first, std::span<std::byte> to, std::span<std::byte> staging) const {
  for_each_block(first, to,
                 [&](std::uint64_t block, const BlockPart& part) { read_block(block, std::span(&part, 1), staging); });
}

std::string CheckedFile::read_text(Bytes limit) const {
  if (expected_.size > limit) {
    throw DataError(fmt::format("{}: has {} bytes; more than {} are refused", path_.string(), expected_.size.count(),
                                limit.count()));
  }
  std::string text(expected_.size.count(), '\0');
  read(Bytes(0), std::as_writable_bytes(std::span(text)), {});
  return text;
}

SafetensorsHeader CheckedFile::read_tensors(std::span<std::byte> staging) const {
  std::vector<std::byte> own(staging.empty() ? std::min(checkpoint_block, expected_.size).count() : 0);
  if (staging.empty()) staging = own;
  return read_header(expected_.size.count(), path_.string(),
                     [&](std::uint64_t place, std::span<std::byte> to) { read(Bytes(place), to, staging); });
}

// "tensors "a", "b"" of those that lie in the bytes [first, first + size); empty where it cannot be told.
std::string CheckedFile::contents(Bytes first, Bytes size) const {
  if (!path_.string().ends_with(".safetensors")) return {};
  SafetensorsHeader header;
  try {
    // Not checked: it may be damaged too, and is parsed with the same suspicion.
    header = read_header(expected_.size.count(), path_.string(),
                         [&](std::uint64_t place, std::span<std::byte> to) { file_.read(place, to); });
  } catch (const DataError&) {
    return {};
  }
  std::size_t count = 0;
  std::string names;
  for (const StoredTensor& tensor : header.tensors) {
    if (tensor.offset >= first + size || tensor.offset + tensor.size <= first) continue;
    if (++count <= most_names) names += fmt::format("{}{}", count == 1 ? "" : ", ", shown_name(tensor.name));
  }
  if (count == 0) return "no tensor is";
  const std::string more = count > most_names ? fmt::format(" and {} more", count - most_names) : "";
  return fmt::format("tensor{} {}{} {}", count == 1 ? "" : "s", names, more, count == 1 ? "is" : "are");
}

}  // namespace tessera::checkpoint
