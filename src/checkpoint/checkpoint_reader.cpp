// Opening a checkpoint puts its parts together; reading and verifying go block by block.
#include "tessera/checkpoint/checkpoint_reader.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <system_error>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "checkpoint/checked_file.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "tessera/base/error.hpp"
#include "tessera/checkpoint/checkpoints.hpp"
#include "tessera/checkpoint/tensor_index.hpp"

namespace tessera {

namespace {

using checkpoint::CheckedFile;
using checkpoint::shown_name;

// The tensors of one kind.
struct Tensors {
  std::vector<CheckpointTensor> list;
  std::unordered_map<std::string, std::size_t> places;
  std::map<std::string, std::string> metadata;  // of all files together
};

// A piece of a range within one block.
struct Piece {
  std::size_t file;
  std::uint64_t block;
  BlockPart part;
};

void cut_into_blocks(const TensorRange& range, std::vector<Piece>& pieces) {
  checkpoint::for_each_block(range.tensor->offset + range.first, range.to,
                             [&](std::uint64_t block, const BlockPart& part) {
                               pieces.push_back({range.tensor->file, block, part});
                             });
}

}  // namespace

class CheckpointReader::Implementation {
 public:
  Implementation(std::filesystem::path path, std::span<std::byte> staging)
      : folder(std::move(path)), manifest(read_checkpoint_manifest(folder)) {
    for (const ManifestFile& file : manifest.files) {
      files.emplace_back(folder, file);
      const std::string fault = files.back().size_fault();
      if (!fault.empty()) throw DataError(fault);
    }
    read_state();
    for (const TensorKind kind : tensor_kinds) collect(kind, staging);
    require_all_known();
    const Tensors& model = of(TensorKind::model);
    aliases = checkpoint::find_aliases(model.metadata, [&](const auto& name) { return model.places.contains(name); });
  }

  const Tensors& of(TensorKind kind) const { return tensors_[static_cast<std::size_t>(kind)]; }

  const std::filesystem::path folder;
  const Manifest manifest;
  std::vector<CheckedFile> files;  // as in the manifest
  CheckpointState state;
  std::map<std::string, std::string> aliases;

 private:
  const CheckedFile* find_file(const std::string& name) {
    const auto found =
        std::find_if(files.begin(), files.end(), [&](const CheckedFile& file) { return file.expected().name == name; });
    if (found == files.end()) return nullptr;
    known_.insert(name);
    return &*found;
  }

  [[noreturn]] void refuse(std::string_view file, const std::string& what) const {
    throw DataError(fmt::format("{}: {}", (folder / file).string(), what));
  }

  void read_state() {
    const CheckedFile* file = find_file(std::string(state_name));
    if (file == nullptr) refuse(manifest_name, fmt::format("names no {}", state_name));
    state = parse_state(file->read_text(state_limit), file->path());
    if (state.step != manifest.step) {
      refuse(state_name,
             fmt::format("is the state of step {}, and the manifest that of step {}", state.step, manifest.step));
    }
  }

  void collect(TensorKind kind, std::span<std::byte> staging) {
    const std::string name = tensor_file_name(to_string(kind));
    const std::string index_name = tensor_index_name(to_string(kind));
    const CheckedFile* const file = find_file(name);
    const CheckedFile* const index = find_file(index_name);
    if (file != nullptr && index != nullptr)
      refuse(index_name, fmt::format("stands beside {}: one of them is too many", name));
    if (file != nullptr) add_file(kind, *file, staging);
    if (index != nullptr) add_indexed(kind, *index, staging);
    if (file == nullptr && index == nullptr && kind == TensorKind::model) {
      refuse(manifest_name, fmt::format("names neither {} nor {}", name, index_name));
    }
  }

  void add_file(TensorKind kind, const CheckedFile& file, std::span<std::byte> staging) {
    Tensors& tensors = tensors_[static_cast<std::size_t>(kind)];
    checkpoint::SafetensorsHeader header = file.read_tensors(staging);
    for (StoredTensor& stored : header.tensors) {
      if (!tensors.places.emplace(stored.name, tensors.list.size()).second) {
        refuse(file.expected().name, fmt::format("tensor {} stands in another file too", shown_name(stored.name)));
      }
      tensors.list.push_back({std::move(stored), static_cast<std::size_t>(&file - files.data())});
    }
    tensors.metadata.merge(header.metadata);
  }

  void add_indexed(TensorKind kind, const CheckedFile& index_file, std::span<std::byte> staging) {
    const std::string& index_name = index_file.expected().name;
    const TensorIndex index = parse_tensor_index(index_file.read_text(tensor_index_limit), index_file.path());
    std::set<std::string> names;
    for (const auto& [tensor, file] : index.files) names.insert(file);
    std::size_t place = 0;
    for (const std::string& name : names) {
      const CheckedFile* const file = find_file(name);
      if (file == nullptr || name != tensor_file_name(to_string(kind), place++, names.size())) {
        refuse(index_name, fmt::format("{} is none of the {} files", shown_name(name), names.size()));
      }
      add_file(kind, *file, staging);
    }
    check_index(of(kind), index, index_name);
  }

  void check_index(const Tensors& tensors, const TensorIndex& index, const std::string& index_name) const {
    Bytes total;
    for (const CheckpointTensor& tensor : tensors.list) {
      total += tensor.size;
      const auto entry = index.files.find(tensor.name);
      if (entry == index.files.end() || entry->second != manifest.files[tensor.file].name) {
        refuse(index_name, fmt::format("does not say that tensor {} is in {}", shown_name(tensor.name),
                                       manifest.files[tensor.file].name));
      }
    }
    for (const auto& [name, file] : index.files) {
      if (!tensors.places.contains(name))
        refuse(index_name, fmt::format("tensor {} is not in {}", shown_name(name), file));
    }
    if (total != index.total_size) {
      refuse(index_name,
             fmt::format("total_size is {}, and the tensors have {} bytes", index.total_size.count(), total.count()));
    }
  }

  void require_all_known() const {
    for (const ManifestFile& file : manifest.files) {
      if (!known_.contains(file.name))
        refuse(manifest_name, fmt::format("names {}, which no checkpoint has", shown_name(file.name)));
    }
  }

  std::array<Tensors, std::size(tensor_kinds)> tensors_;
  std::set<std::string> known_;  // files that have a meaning
};

std::string_view to_string(TensorKind kind) {
  switch (kind) {
    case TensorKind::model: return "model";
    case TensorKind::optimizer: return "optimizer";
    case TensorKind::buffers: return "buffers";
  }
  throw InternalError("checkpoint: a kind of tensors that does not exist");
}

CheckpointReader::CheckpointReader(std::filesystem::path folder, std::span<std::byte> staging)
    : implementation_(std::make_unique<Implementation>(std::move(folder), staging)) {}
CheckpointReader::CheckpointReader(CheckpointReader&&) noexcept = default;
CheckpointReader& CheckpointReader::operator=(CheckpointReader&&) noexcept = default;
CheckpointReader::~CheckpointReader() = default;

const std::filesystem::path& CheckpointReader::folder() const { return implementation_->folder; }
const Manifest& CheckpointReader::manifest() const { return implementation_->manifest; }
const CheckpointState& CheckpointReader::state() const { return implementation_->state; }
const std::map<std::string, std::string>& CheckpointReader::aliases() const { return implementation_->aliases; }
const std::map<std::string, std::string>& CheckpointReader::metadata() const {
  return implementation_->of(TensorKind::model).metadata;
}
const std::vector<CheckpointTensor>& CheckpointReader::tensors(TensorKind kind) const {
  return implementation_->of(kind).list;
}

const CheckpointTensor* CheckpointReader::find(TensorKind kind, std::string_view name) const {
  const Tensors& tensors = implementation_->of(kind);
  auto place = tensors.places.find(std::string(name));
  if (place == tensors.places.end() && kind == TensorKind::model) {
    const auto alias = aliases().find(std::string(name));
    if (alias != aliases().end()) place = tensors.places.find(alias->second);
  }
  return place == tensors.places.end() ? nullptr : &tensors.list[place->second];
}

void CheckpointReader::read_block(std::size_t file, std::uint64_t block, std::span<const BlockPart> parts,
                                  std::span<std::byte> staging) const {
  implementation_->files.at(file).read_block(block, parts, staging);
}

// Blocks that the system may read before they are asked for, so that the device is never idle.
constexpr std::size_t blocks_ahead = 8;

void CheckpointReader::read(std::span<const TensorRange> ranges, std::span<std::byte> staging,
                            const std::function<void()>& between) const {
  std::vector<Piece> pieces;
  for (const TensorRange& range : ranges) {
    checkpoint::require_inside(*range.tensor, range.first, range.to.size(), folder().string());
    cut_into_blocks(range, pieces);
  }
  std::sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::tuple(a.file, a.block, a.part.first) < std::tuple(b.file, b.block, b.part.first);
  });
  const auto begins_block = [&](std::size_t i) {
    return i == 0 || pieces[i].file != pieces[i - 1].file || pieces[i].block != pieces[i - 1].block;
  };
  std::size_t expected = 0;  // pieces before it were asked for
  std::size_t ahead = 0;     // blocks that were asked for and not read yet
  std::vector<BlockPart> parts;
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    parts.push_back(pieces[i].part);
    if (i + 1 < pieces.size() && !begins_block(i + 1)) continue;
    for (; expected < pieces.size() && ahead < blocks_ahead; ++expected) {
      if (!begins_block(expected)) continue;
      implementation_->files[pieces[expected].file].expect(pieces[expected].block);
      ++ahead;
    }
    --ahead;
    read_block(pieces[i].file, pieces[i].block, parts, staging);
    if (between) between();
    parts.clear();
  }
}

void CheckpointReader::read(const CheckpointTensor& tensor, Bytes first, std::span<std::byte> to,
                            std::span<std::byte> staging) const {
  const TensorRange range{&tensor, first, to};
  read(std::span(&range, 1), staging);
}

// ---- verification: all faults, not only the first ----

namespace {

// Where `work` throws a DataError, its text is a fault.
template <typename Work>
void collect(std::vector<std::string>& faults, const Work& work) {
  try {
    work();
  } catch (const DataError& error) {
    faults.emplace_back(error.what());
  }
}

class Verification {
 public:
  Verification(const std::filesystem::path& folder, const VerifyProgress& progress)
      : folder_(folder), progress_(progress), staging_(checkpoint_block.count()) {}

  std::vector<std::string> run() {
    const bool was_there = is_there();
    look();
    if (was_there && !faults_.empty() && !is_there()) {
      throw DataError(fmt::format("{}: was removed, or got another name, while it was read", folder_.string()));
    }
    return std::move(faults_);
  }

 private:
  bool is_there() const {
    std::error_code ignored;  // what keeps a path from being looked at keeps the manifest from being read
    return std::filesystem::exists(folder_, ignored);
  }

  void look() {
    collect(faults_, [&] { read_checkpoint_manifest(folder_); });
    std::optional<Manifest> manifest;  // of another step it is still one
    try {
      manifest = read_manifest(folder_);
    } catch (const DataError&) {
      return;
    }
    for (const ManifestFile& file : manifest->files) total_ += file.size;
    for (const ManifestFile& file : manifest->files) check_file(file);
    if (faults_.empty()) collect(faults_, [&] { CheckpointReader{folder_}; });
  }

  void check_file(const ManifestFile& expected) {
    std::optional<CheckedFile> file;
    collect(faults_, [&] { file.emplace(folder_, expected); });
    std::string size_fault = file ? file->size_fault() : "";
    const bool whole = size_fault.empty();
    if (!whole) faults_.push_back(std::move(size_fault));
    for (std::uint64_t block = 0; block < expected.blocks.size(); ++block) {
      const Bytes size = std::min(checkpoint_block, expected.size - block * checkpoint_block);
      // A file that is cut off has its size as its fault.
      if (file && whole && block + 1 < expected.blocks.size()) file->expect(block + 1);
      if (file && whole) collect(faults_, [&] { file->read_block(block, {}, staging_); });
      done_ += size;
      if (progress_) progress_(done_, total_);
    }
  }

  const std::filesystem::path& folder_;
  const VerifyProgress& progress_;
  std::vector<std::byte> staging_;
  std::vector<std::string> faults_;
  Bytes done_;
  Bytes total_;
};

}  // namespace

std::vector<std::string> verify_checkpoint(const std::filesystem::path& folder, const VerifyProgress& progress) {
  return Verification(folder, progress).run();
}

}  // namespace tessera
