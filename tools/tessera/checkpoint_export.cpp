// `tessera checkpoint export`: a checkpoint's weights as plain safetensors, for inference and other libraries.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "checkpoint_command.hpp"
#include "checkpoint_values.hpp"
#include "options.hpp"
#include "tessera/base/error.hpp"
#include "tessera/base/half.hpp"
#include "tessera/checkpoint/checkpoints.hpp"
#include "tessera/checkpoint/safetensors.hpp"
#include "tessera/checkpoint/tensor_index.hpp"
#include "text.hpp"

namespace tools {

using tessera::Bytes;
using tessera::CheckpointReader;
using tessera::CheckpointTensor;
using tessera::DataError;
using tessera::DType;
using tessera::SafetensorsWriter;
using tessera::TensorSpec;

namespace fs = std::filesystem;

namespace checkpoint_export {

constexpr std::size_t piece = std::size_t{1} << 20;  // elements that are converted at once
constexpr std::string_view stem = "model";           // of the names of files, where there are several

struct Request {
  fs::path checkpoint;
  fs::path out;
  DType dtype = DType::fp32;
  Bytes most = tessera::split_limit;  // of the tensors in one file
  bool json = false;
};

// The whole of an export: what is written, and where each file begins.
struct Job {
  const CheckpointReader& reader;
  std::vector<CheckpointTensor> tensors;
  std::vector<TensorSpec> specs;
  std::vector<std::size_t> begins;
  Bytes size;
};

Job make_job(const Request& request, const CheckpointReader& reader) {
  Job job{reader, reader.tensors(tessera::TensorKind::model), {}, {}, Bytes(0)};
  const std::size_t parameters = job.tensors.size();
  const std::vector<CheckpointTensor>& buffers = reader.tensors(tessera::TensorKind::buffers);
  job.tensors.insert(job.tensors.end(), buffers.begin(), buffers.end());
  std::vector<Bytes> sizes;
  for (const CheckpointTensor& tensor : job.tensors) {
    if (!is_floating(tensor)) {
      throw DataError(fmt::format("{}: tensor \"{}\" is {}, and not floating point", reader.folder().string(),
                                  printable(tensor.name), tensor.dtype));
    }
    const DType dtype = job.specs.size() < parameters ? request.dtype : DType::fp32;  // buffers stay what they are
    job.specs.push_back({.name = tensor.name, .shape = tensor.shape, .dtype = dtype});
    sizes.push_back(tessera::element_count(tensor.shape) * size_of(dtype));
    job.size += sizes.back();
  }
  job.begins = split_tensors(sizes, request.most);
  return job;
}

template <typename Half>
std::vector<std::byte> narrow(std::span<const float> values, const std::string& name) {
  std::vector<std::byte> bytes(values.size() * sizeof(Half));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Half half(values[i]);
    if (std::isfinite(values[i]) && !std::isfinite(static_cast<float>(half))) {
      throw DataError(fmt::format("tensor \"{}\": {} is beyond what {} can have: export it as {}", printable(name),
                                  values[i], to_string(tessera::dtype_of<Half>),
                                  tessera::dtype_of<Half> == DType::fp16 ? "bf16 or fp32" : "fp32"));
    }
    std::memcpy(bytes.data() + i * sizeof(Half), &half, sizeof(Half));
  }
  return bytes;
}

std::vector<std::byte> converted(std::span<const float> values, const TensorSpec& spec) {
  switch (spec.dtype) {
    case DType::bf16: return narrow<tessera::bf16>(values, spec.name);
    case DType::fp16: return narrow<tessera::fp16>(values, spec.name);
    case DType::fp32:
    case DType::u8:
    case DType::int8: break;
  }
  const std::span<const std::byte> bytes = std::as_bytes(values);
  return {bytes.begin(), bytes.end()};
}

void write_tensor(SafetensorsWriter& writer, std::size_t place, const CheckpointTensor& tensor, const TensorSpec& spec,
                  CheckpointValues& values) {
  const std::size_t elements = tessera::element_count(tensor.shape);
  std::vector<std::byte> stored;
  std::vector<float> floats;
  for (std::size_t first = 0; first < elements; first += piece) {
    floats.resize(std::min(piece, elements - first));
    stored.resize(floats.size() * element_bytes(tensor));
    values.read(tensor, Bytes(first * element_bytes(tensor)), stored);
    widen(tensor.dtype, stored, floats);
    writer.write(place, first * size_of(spec.dtype), converted(floats, spec));
  }
}

// The checkpoint's, of its aliases those of the tensors [begin, end), and what other libraries expect to read there.
std::map<std::string, std::string> metadata_of(const Job& job, std::size_t begin, std::size_t end) {
  std::map<std::string, std::string> metadata = job.reader.metadata();
  for (const auto& [alias, stored] : job.reader.aliases()) {
    const auto is_it = [&name = stored](const CheckpointTensor& tensor) { return tensor.name == name; };
    const auto first = job.tensors.begin();
    if (std::none_of(first + static_cast<std::ptrdiff_t>(begin), first + static_cast<std::ptrdiff_t>(end), is_it)) {
      metadata.erase(alias);
    }
  }
  metadata["format"] = "pt";
  return metadata;
}

void write_file(const fs::path& path, const Job& job, std::size_t begin, std::size_t end) {
  const auto at = [&](std::size_t i) { return job.specs.begin() + static_cast<std::ptrdiff_t>(i); };
  SafetensorsWriter writer(path, {at(begin), at(end)}, metadata_of(job, begin, end));
  writer.create();
  CheckpointValues values(job.reader);
  for (std::size_t i = begin; i < end; ++i) write_tensor(writer, i - begin, job.tensors[i], job.specs[i], values);
  writer.finish();
}

void write_files(const fs::path& folder, const Job& job) {
  tessera::TensorIndex index{.total_size = job.size};
  for (std::size_t file = 0; file < job.begins.size(); ++file) {
    const std::size_t end = file + 1 < job.begins.size() ? job.begins[file + 1] : job.specs.size();
    const std::string name = tessera::tensor_file_name(stem, file, job.begins.size());
    write_file(folder / name, job, job.begins[file], end);
    for (std::size_t i = job.begins[file]; i < end; ++i) index.files[job.specs[i].name] = name;
  }
  write_tensor_index(folder / tessera::tensor_index_name(stem), index);
}

// A folder that gets its name when all is in it, and goes with its content where that never happens. It is locked
// meanwhile: what an export that was killed left under its name goes, and another one's that runs does not.
class NewFolder {
 public:
  explicit NewFolder(fs::path path) : path_(std::move(path)), partial_(path_.string() + ".partial") {
    std::error_code error;
    fs::create_directory(partial_, error);
    handle_ = ::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (error || handle_ < 0) {
      throw DataError(
          fmt::format("{}: cannot be made: {}", partial_.string(), error ? error.message() : std::strerror(errno)));
    }
    if (::flock(handle_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) refuse("another program is writing here");
    for (const fs::directory_entry& entry : fs::directory_iterator(partial_)) {
      if (!entry.path().filename().string().starts_with(stem)) refuse("has files that are no export's: remove it");
      fs::remove(entry.path(), error);
    }
  }
  NewFolder(const NewFolder&) = delete;
  NewFolder& operator=(const NewFolder&) = delete;
  ~NewFolder() {
    std::error_code ignored;  // a destructor has nobody to tell
    if (!finished_) fs::remove_all(partial_, ignored);
    ::close(handle_);
  }

  const fs::path& partial() const { return partial_; }
  void finish() {
    std::error_code error;
    if (::fsync(handle_) != 0) {
      throw DataError(fmt::format("{}: cannot be flushed: {}", partial_.string(), std::strerror(errno)));
    }
    fs::rename(partial_, path_, error);
    if (error) throw DataError(fmt::format("{}: cannot be put in place: {}", path_.string(), error.message()));
    finished_ = true;
    const fs::path above = path_.has_parent_path() ? path_.parent_path() : ".";
    const int folder = ::open(above.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;  // it may not be read: the files are in place all the same
    ::fsync(folder);
    ::close(folder);
  }

 private:
  [[noreturn]] void refuse(std::string_view why) {
    ::close(handle_);
    throw DataError(fmt::format("{}: {}", partial_.string(), why));
  }

  fs::path path_;
  fs::path partial_;
  int handle_;
  bool finished_ = false;
};

void write(const fs::path& out, const Job& job) {
  std::error_code error;
  if (fs::exists(fs::symlink_status(out, error))) {
    throw DataError(fmt::format("{}: exists already: give another name, or remove it", out.string()));
  }
  if (job.begins.size() == 1) return write_file(out, job, 0, job.specs.size());
  NewFolder folder(out);
  write_files(folder.partial(), job);
  folder.finish();
}

std::string text_of(const Request& request, const Job& job) {
  const std::string files =
      job.begins.size() == 1 ? "" : fmt::format(" in {} files and their index", job.begins.size());
  return fmt::format("{}: {} of step {} as {}, {}{}\n", request.out.string(),
                     counted(job.specs.size(), "tensor", "tensors"), job.reader.manifest().step,
                     to_string(request.dtype), decimal_size(static_cast<double>(job.size.count())), files);
}

Json json_of(const Request& request, const Job& job) {
  return {{"checkpoint", job.reader.folder().string()},
          {"step", job.reader.manifest().step},
          {"out", request.out.string()},
          {"dtype", to_string(request.dtype)},
          {"tensors", job.specs.size()},
          {"bytes", job.size.count()},
          {"files", job.begins.size()}};
}

bool parse(std::vector<std::string> arguments, Request& request) {
  CommandLine options(
      "Writes a checkpoint's weights as safetensors.",
      "OUT must not exist; it appears when it is whole. Where the tensors are larger than one file may be,\n"
      "OUT is a folder with the files and their index, as the Hugging Face libraries read them. Names that\n"
      "share a tensor stand in the metadata.\n"
      "Example: tessera checkpoint export runs model.safetensors --dtype bf16",
      "tessera checkpoint export");
  options.place("CHECKPOINT", request.checkpoint, "The checkpoint, or a folder of them for the latest");
  options.place("OUT", request.out, "The file to write, or the folder");
  options.choice<DType>("--dtype", request.dtype, {{"fp32", DType::fp32}, {"bf16", DType::bf16}, {"fp16", DType::fp16}},
                        "Of the written weights [fp32]");
  options.take({"--max-file-size", "SIZE", "Of the tensors in one file [5GB]"},
               [&](const std::string& text) { request.most = size_in_bytes("--max-file-size", text); });
  options.flag("--json", request.json, "Prints JSON");
  return options.parse(std::move(arguments));
}

}  // namespace checkpoint_export

bool run_checkpoint_export(std::vector<std::string> arguments) {
  using namespace checkpoint_export;
  Request request;
  if (!parse(std::move(arguments), request)) return true;
  const CheckpointReader reader(tessera::find_checkpoint(request.checkpoint));
  const Job job = make_job(request, reader);
  write(request.out, job);
  fmt::print("{}", request.json ? object_text(json_of(request, job)) : text_of(request, job));
  return true;
}

}  // namespace tools
