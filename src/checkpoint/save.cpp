// Ranks fail together: each part that may fail on one of them ends in a meeting where the others hear of it.
#include "checkpoint/save.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "checkpoint/block_writer.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/unfinished.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/state.hpp"

namespace tessera::checkpoint {

namespace {

// Ranks meet after so many blocks (1 GiB), with everything on the device: so none waits for another longer than that
// takes, however large the model is.
constexpr std::size_t blocks_between_meetings = 256;

class Save {
 public:
  explicit Save(const SaveInput& input) : in_(input), channel_(input.channel) {}

  void run() {
    const bool fresh = begin();
    try {
      const std::vector<std::uint32_t> checksums = write_blocks(fresh);
      channel_.together("checkpoint: commit", [&] {
        if (arranges()) finish(checksums, fresh);
      });
    } catch (...) {
      if (arranges() && fresh) in_.directory->abandon(in_.step);
      throw;
    }
    if (!fresh) return;
    channel_.together("checkpoint: remove old ones", [&] {
      if (arranges()) in_.directory->prune(in_.keep);
    });
  }

 private:
  bool arranges() const { return in_.directory != nullptr; }

  // True when the step is new, and its growing folder stands.
  bool begin() {
    channel_.together("checkpoint: begin", [&] {
      if (!arranges()) return;
      existing_ = in_.directory->existing(in_.step);
      if (!existing_) in_.directory->begin(in_.step, in_.files);
    });
    const std::byte mine{existing_.has_value()};
    return channel_.gather(std::span(&mine, 1), "checkpoint: is it there already")[0] == std::byte{0};
  }

  std::vector<std::uint32_t> write_blocks(bool fresh) {
    BlockWriter writer({.files = in_.files,
                        .map = in_.map,
                        .values = in_.values,
                        .folder = fresh ? std::optional(unfinished_folder(in_.path, in_.step)) : std::nullopt});
    write_direct(writer);
    BlockExchange(in_.map, in_.values, channel_, in_.staging).run([&](const Block& block, std::span<std::byte> bytes) {
      writer.write_shared(block, bytes);
    });
    writer.flush();
    channel_.together("checkpoint: blocks", [&] { writer.rethrow_failure(); });
    return gather_checksums(writer.checksums());
  }

  void write_direct(BlockWriter& writer) {
    std::size_t written = 0;
    for (const Block& block : in_.map.direct()) {
      if (block.writer != channel_.rank()) continue;
      writer.write_direct(block);
      if (++written % blocks_between_meetings == 0) meet(writer);
    }
    for (std::size_t met = written / blocks_between_meetings; met < in_.map.most_direct() / blocks_between_meetings;
         ++met) {
      meet(writer);
    }
  }

  void meet(BlockWriter& writer) {
    writer.flush();
    channel_.together("checkpoint: 1 GiB of blocks", [&] { writer.rethrow_failure(); });
  }

  // Of all blocks, from the rank that wrote each, through the staging's parts.
  std::vector<std::uint32_t> gather_checksums(const std::vector<std::uint32_t>& mine) {
    if (channel_.size() == 1) return mine;
    std::vector<std::uint32_t> all(mine.size());
    const std::size_t at_once = in_.staging.part.count() / sizeof(std::uint32_t);
    for (std::size_t first = 0; first < all.size(); first += at_once) {
      const std::size_t count = std::min(at_once, all.size() - first);
      std::memcpy(part(channel_.rank()), mine.data() + first, count * sizeof(std::uint32_t));
      channel_.all_gather(in_.staging.parts, in_.staging.part, "checkpoint: checksums");
      for (std::size_t i = 0; i < count; ++i) {
        std::memcpy(&all[first + i], part(in_.map.writer(first + i)) + i * sizeof(std::uint32_t),
                    sizeof(std::uint32_t));
      }
    }
    return all;
  }
  std::byte* part(std::size_t rank) { return in_.staging.parts.data() + rank * in_.staging.part.count(); }

  void finish(const std::vector<std::uint32_t>& checksums, bool fresh) {
    const Manifest manifest = manifest_of(checksums);
    if (!fresh) return require_same(manifest);
    const std::filesystem::path folder = in_.directory->growing(in_.step);
    for (const TextFile& index : in_.files.indices) write_new_file(folder / index.name, index.text);
    write_new_file(folder / state_name, in_.state);
    in_.directory->commit(manifest);
  }

  void require_same(const Manifest& manifest) const {
    if (manifest == *existing_) return;
    throw DataError(fmt::format(
        "{}: this step was saved before, with other contents, and is not overwritten; use another directory, or resume "
        "from the latest checkpoint",
        in_.directory->finished(in_.step).string()));
  }

  Manifest manifest_of(const std::vector<std::uint32_t>& checksums) const {
    Manifest manifest{.step = in_.step};
    auto next = checksums.begin();
    for (std::size_t f = 0; f < in_.files.tensors.size(); ++f) {
      const auto end = next + static_cast<std::ptrdiff_t>(in_.map.blocks(f));
      manifest.files.push_back({in_.files.tensors[f].name, Bytes(in_.files.tensors[f].size()), {next, end}});
      next = end;
    }
    for (const TextFile& index : in_.files.indices) manifest.files.push_back(text_entry(index.name, index.text));
    manifest.files.push_back(text_entry(std::string(state_name), in_.state));
    std::sort(manifest.files.begin(), manifest.files.end(),
              [](const auto& a, const auto& b) { return a.name < b.name; });
    return manifest;
  }

  static ManifestFile text_entry(std::string name, std::string_view text) {
    ManifestFile entry{.name = std::move(name), .size = Bytes(text.size())};
    constexpr std::size_t block = checkpoint_block.count();
    for (std::size_t begin = 0; begin < text.size(); begin += block) {
      entry.blocks.push_back(crc32c(std::as_bytes(std::span(text.substr(begin, block)))));
    }
    return entry;
  }

  const SaveInput& in_;
  Channel& channel_;
  std::optional<Manifest> existing_;  // on the rank that arranges
};

}  // namespace

void save(const SaveInput& input) { Save(input).run(); }

}  // namespace tessera::checkpoint
