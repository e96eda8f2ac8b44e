// Ranks fail together: each part that may fail on one of them ends in a meeting where the others hear of it.
#include "checkpoint/save.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <exception>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "checkpoint/checksum.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/state.hpp"

namespace tessera::checkpoint {

namespace {

// ---- writing blocks ----

// Returns the part of the file's head that stands in the block.
std::span<const std::byte> head_in(const LaidFile& file, const Block& block) {
  const auto head = std::as_bytes(std::span(file.head));
  if (block.begin >= head.size()) return {};
  return head.subspan(block.begin, std::min<std::uint64_t>(head.size(), block.end) - block.begin);
}

// Writes this rank's blocks of a checkpoint's tensor files and takes their checksums; or only takes them. The first
// failure is kept, and nothing is written after it: collectives must go on. One positioned, gathering write per block;
// the kernel is asked to begin with each at once, so that the device works while the next checksum is taken.
struct BlockWriterInput {
  const CheckpointFiles& files;
  const BlockMap& map;
  const ShardValues& values;
  std::optional<std::filesystem::path> folder;  // none: checksums only
};

class BlockWriter {
 public:
  explicit BlockWriter(BlockWriterInput input);

  void write_direct(const Block& block);
  void write_shared(const Block& block, std::span<std::byte> bytes);  // adds the file's head, where it stands there
  void flush();                                                       // what was written is on the device
  void rethrow_failure() const;

  // The index is the block's number; the value is 0 where another rank wrote it.
  const std::vector<std::uint32_t>& checksums() const { return checksums_; }

 private:
  using Pieces = std::vector<std::span<const std::byte>>;

  void put(const Block& block, const Pieces& pieces);
  File& file(std::size_t index);
  template <typename Work>
  void guarded(Work work);

  BlockWriterInput input_;
  std::vector<std::optional<File>> open_;
  std::vector<std::uint32_t> checksums_;
  Pieces pieces_;  // of the block being written
  std::exception_ptr failure_;
};

BlockWriter::BlockWriter(BlockWriterInput input)
    : input_(std::move(input)), open_(input_.files.tensors.size()), checksums_(input_.map.blocks()) {}

template <typename Work>
void BlockWriter::guarded(Work work) {
  if (failure_) return;
  try {
    work();
  } catch (...) {
    failure_ = std::current_exception();
  }
}

void BlockWriter::write_direct(const Block& block) {
  guarded([&] {
    pieces_.clear();
    const auto head = head_in(input_.files.tensors[block.file], block);
    if (!head.empty()) pieces_.push_back(head);
    input_.map.for_each_run(block, [&](const Run& run) { pieces_.push_back(input_.values.at(run)); });
    put(block, pieces_);
  });
}

void BlockWriter::write_shared(const Block& block, std::span<std::byte> bytes) {
  guarded([&] {
    const auto head = head_in(input_.files.tensors[block.file], block);
    std::copy(head.begin(), head.end(), bytes.begin());
    pieces_.assign(1, bytes);
    put(block, pieces_);
  });
}

void BlockWriter::put(const Block& block, const Pieces& pieces) {
  std::uint32_t sum = 0;
  for (const auto& piece : pieces) sum = extend_crc32c(sum, piece);
  checksums_[input_.map.number(block)] = sum;
  if (!input_.folder) return;
  file(block.file).write(block.begin, pieces);
  file(block.file).begin_flush(block.begin, block.end - block.begin);
}

void BlockWriter::flush() {
  for (std::optional<File>& file : open_) {
    if (file) guarded([&] { file->flush(); });
  }
}

void BlockWriter::rethrow_failure() const {
  if (failure_) std::rethrow_exception(failure_);
}

File& BlockWriter::file(std::size_t index) {
  if (!open_[index]) open_[index] = File::open_to_write(*input_.folder / input_.files.tensors[index].name);
  return *open_[index];
}

// ---- elements of shared blocks ----

constexpr std::string_view label = "checkpoint: elements of shared blocks";

// Calls visit(block, run, begin) for each run that travels; begin: its place in its rank's stream.
template <typename Visit>
void for_each_sent(const BlockMap& map, std::span<const Block> group, std::vector<std::uint64_t>& ends, Visit visit) {
  for (const Block& block : group) {
    map.for_each_run(block, [&](const Run& run) {
      if (run.rank == block.writer) return;
      visit(block, run, ends[run.rank]);
      ends[run.rank] += run.bytes();
    });
  }
}

// The part of [begin, begin + size) that stands in [window, window + length).
struct Overlap {
  std::uint64_t begin;
  std::uint64_t end;
  bool empty() const { return begin >= end; }
};
Overlap overlap(std::uint64_t begin, std::uint64_t size, std::uint64_t window, std::uint64_t length) {
  return {std::max(begin, window), std::min(begin + size, window + length)};
}

// Brings elements of shared blocks to the ranks that write them, through bounded staging: blocks in groups of one per
// rank, each group in rounds of an all-gather in which every rank gives the next part of what it has for others: a
// stream of bytes, its runs block after block, without those of the block that it writes itself. Every rank knows where
// every stream's bytes go.
class BlockExchange {
 public:
  BlockExchange(const SaveInput& input, const BlockMap& map)
      : in_(input), map_(map), values_(input.values), channel_(input.channel), staging_(input.staging) {}

  // Calls write(block, bytes) for each shared block that this rank writes, with the bytes of all runs in place (and
  // without the file's head). Collective.
  void run(const std::function<void(const Block&, std::span<std::byte>)>& write);

 private:
  std::size_t rounds(std::span<const Block> group) const;
  void exchange(std::span<const Block> group, std::size_t round);
  void gather();
  void keep_mine(const Block& mine);

  const SaveInput& in_;
  const BlockMap& map_;
  const ShardValues& values_;
  Channel& channel_;
  const Staging& staging_;
};

void BlockExchange::run(const std::function<void(const Block&, std::span<std::byte>)>& write) {
  const std::span<const Block> all(map_.shared());
  for (std::size_t first = 0; first < all.size(); first += channel_.size()) {
    const auto group = all.subspan(first, std::min(channel_.size(), all.size() - first));
    const auto mine =
        std::find_if(group.begin(), group.end(), [&](const Block& b) { return b.writer == channel_.rank(); });
    if (mine != group.end()) keep_mine(*mine);
    const std::size_t count = rounds(group);
    for (std::size_t round = 0; round < count; ++round) exchange(group, round);
    if (mine != group.end()) write(*mine, staging_.block.first(mine->end - mine->begin));
  }
}

std::size_t BlockExchange::rounds(std::span<const Block> group) const {
  std::vector<std::uint64_t> ends(channel_.size());
  for_each_sent(map_, group, ends, [](const Block&, const Run&, std::uint64_t) {});
  const std::uint64_t longest = *std::max_element(ends.begin(), ends.end());
  return (longest + staging_.part.count() - 1) / staging_.part.count();
}

void BlockExchange::keep_mine(const Block& mine) {
  map_.for_each_run(mine, [&](const Run& run) {
    if (run.rank != channel_.rank()) return;
    const std::span<const std::byte> values = values_.at(run);
    std::memcpy(staging_.block.data() + (run.begin() - mine.begin), values.data(), values.size());
  });
}

// The devices' collectives have one order on all ranks, training's, which another thread does not know.
void BlockExchange::gather() {
  if (in_.over_channel) return channel_.all_gather(staging_.parts, staging_.part, label);
  in_.world.all_gather(staging_.parts, label);
}

void BlockExchange::exchange(std::span<const Block> group, std::size_t round) {
  const std::uint64_t part = staging_.part.count();
  const std::uint64_t window = round * part;
  std::vector<std::uint64_t> ends(channel_.size());
  for_each_sent(map_, group, ends, [&](const Block&, const Run& run, std::uint64_t begin) {
    const Overlap now = overlap(begin, run.bytes(), window, part);
    if (run.rank != channel_.rank() || now.empty()) return;
    const std::span<const std::byte> values = values_.at(run);
    std::memcpy(staging_.parts.data() + run.rank * part + (now.begin - window), values.data() + (now.begin - begin),
                now.end - now.begin);
  });
  gather();
  ends.assign(channel_.size(), 0);
  for_each_sent(map_, group, ends, [&](const Block& block, const Run& run, std::uint64_t begin) {
    const Overlap now = overlap(begin, run.bytes(), window, part);
    if (block.writer != channel_.rank() || now.empty()) return;
    std::memcpy(staging_.block.data() + (run.begin() - block.begin) + (now.begin - begin),
                staging_.parts.data() + run.rank * part + (now.begin - window), now.end - now.begin);
  });
}

// ---- the save ----

}  // namespace

class Save::Parts {
 public:
  Parts(Plans plans, SaveInput input)
      : in_(std::move(input)), map_(std::move(plans), in_.files), channel_(in_.channel) {}

  void share() {
    fresh_ = begin();
    unless_it_fails([&] {
      writer_.emplace(
          BlockWriterInput{.files = in_.files,
                           .map = map_,
                           .values = in_.values,
                           .folder = fresh_ ? std::optional(unfinished_folder(in_.path, in_.step)) : std::nullopt});
      BlockExchange(in_, map_).run(
          [&](const Block& block, std::span<std::byte> bytes) { writer_->write_shared(block, bytes); });
    });
  }

  void finish() {
    unless_it_fails([&] {
      const std::vector<std::uint32_t> checksums = write_the_rest();
      channel_.together("checkpoint: commit", [&](const Pause& pause) {
        if (arranges()) run_apart(pause, [&] { commit(checksums); });
      });
    });
    if (!fresh_) return;
    channel_.together("checkpoint: remove old ones", [&](const Pause& pause) {
      if (arranges()) remove_old_ones(pause);
    });
  }

 private:
  template <typename Work>
  void unless_it_fails(const Work& work) {
    try {
      work();
    } catch (...) {
      if (arranges() && fresh_) in_.directory->abandon(in_.step);
      throw;
    }
  }

  bool arranges() const { return in_.directory != nullptr; }

  // True when the step is new, and its growing folder stands.
  bool begin() {
    channel_.together("checkpoint: begin", [&](const Pause& pause) {
      if (!arranges()) return;
      const CheckpointDirectory::Standing standing = in_.directory->standing(in_.step, pause);
      if (!standing.fault.empty()) set_aside(standing.fault);
      existing_ = standing.manifest;
      if (!existing_) in_.directory->begin(in_.step, in_.files, pause);
    });
    const std::byte mine{existing_.has_value()};
    return channel_.gather(std::span(&mine, 1), "checkpoint: is it there already")[0] == std::byte{0};
  }

  void set_aside(const std::string& fault) {
    const std::filesystem::path aside = in_.directory->set_aside(in_.step);
    in_.world.warn(
        fmt::format("{}; it stood where step {} is saved now, and is kept as {}", fault, in_.step, aside.string()));
  }

  std::vector<std::uint32_t> write_the_rest() {
    BlockWriter& writer = *writer_;
    write_direct(writer);
    channel_.together("checkpoint: flush", [&](const Pause& pause) {
      run_apart(pause, [&] { writer.flush(); });
      writer.rethrow_failure();
    });
    return gather_checksums(writer.checksums());
  }

  void write_direct(BlockWriter& writer) {
    channel_.together("checkpoint: blocks", [&](const Pause& pause) {
      for (const Block& block : map_.direct()) {
        if (block.writer != channel_.rank()) continue;
        writer.write_direct(block);
        writer.rethrow_failure();
        pause();
      }
    });
  }

  // The saved files stand, so a file that cannot be removed is no failure of the save.
  void remove_old_ones(const Pause& pause) {
    try {
      in_.directory->prune(in_.step, in_.keep, pause);
    } catch (const DataError& error) {
      in_.world.warn(fmt::format("step {} is saved, but an older checkpoint stays: {}", in_.step, error.what()));
    }
  }

  // Gathers the checksums of all blocks, from the rank that wrote each, through the staging's parts.
  std::vector<std::uint32_t> gather_checksums(const std::vector<std::uint32_t>& mine) {
    if (channel_.size() == 1) return mine;
    std::vector<std::uint32_t> all(mine.size());
    const std::size_t at_once = in_.staging.part.count() / sizeof(std::uint32_t);
    for (std::size_t first = 0; first < all.size(); first += at_once) {
      const std::size_t count = std::min(at_once, all.size() - first);
      std::memcpy(part(channel_.rank()), mine.data() + first, count * sizeof(std::uint32_t));
      channel_.all_gather(in_.staging.parts, in_.staging.part, "checkpoint: checksums");
      for (std::size_t i = 0; i < count; ++i) {
        std::memcpy(&all[first + i], part(map_.writer(first + i)) + i * sizeof(std::uint32_t), sizeof(std::uint32_t));
      }
    }
    return all;
  }
  std::byte* part(std::size_t rank) { return in_.staging.parts.data() + rank * in_.staging.part.count(); }

  void commit(const std::vector<std::uint32_t>& checksums) {
    const Manifest manifest = manifest_of(checksums);
    if (!fresh_) return require_same(manifest);
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
      const auto end = next + static_cast<std::ptrdiff_t>(map_.blocks(f));
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

  SaveInput in_;
  BlockMap map_;
  Channel& channel_;
  std::optional<Manifest> existing_;  // on the rank that arranges
  bool fresh_ = false;                // nothing of this step stood there
  std::optional<BlockWriter> writer_;
};

Staging::Staging(std::span<std::byte> memory, std::size_t ranks) {
  const plan::CheckpointStaging sizes = plan::checkpoint_staging(ranks);
  if (memory.size() < sizes.size().count()) throw InternalError("the staging of checkpoints is smaller than planned");
  block = memory.first(sizes.block.count());
  part = sizes.part;
  parts = memory.subspan(sizes.block.count(), (ranks * part).count());
}

Save::Save(Plans plans, SaveInput input) : parts_(std::make_unique<Parts>(std::move(plans), std::move(input))) {}
Save::~Save() = default;
void Save::share() { parts_->share(); }
void Save::finish() { parts_->finish(); }

}  // namespace tessera::checkpoint
