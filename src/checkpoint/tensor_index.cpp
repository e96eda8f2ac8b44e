// Splitting tensors over files, and the index of the files.
#include "tessera/checkpoint/tensor_index.hpp"

#include <fmt/format.h>

#include "checkpoint/file.hpp"
#include "checkpoint/json_form.hpp"
#include "tessera/base/error.hpp"

namespace tessera {

namespace {

using checkpoint::JsonForm;
using checkpoint::JsonText;

constexpr std::size_t most_files = 99'999;  // what five digits can count

}  // namespace

std::vector<std::size_t> split_tensors(std::span<const Bytes> sizes, Bytes limit) {
  std::vector<std::size_t> begins = {0};
  Bytes in_file;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (i > begins.back() && (sizes[i] > limit || in_file > limit - sizes[i])) {
      begins.push_back(i);
      in_file = Bytes(0);
    }
    in_file += sizes[i];
  }
  return begins;
}

std::string tensor_file_name(std::string_view stem) { return fmt::format("{}.safetensors", stem); }

std::string tensor_index_name(std::string_view stem) { return fmt::format("{}.safetensors.index.json", stem); }

std::string tensor_file_name(std::string_view stem, std::size_t file, std::size_t files) {
  if (file >= files || files > most_files) {
    throw UsageError(fmt::format("file {} of {}: tensors go into at most {} files", file, files, most_files));
  }
  return fmt::format("{}-{:05}-of-{:05}.safetensors", stem, file + 1, files);
}

std::string compose(const TensorIndex& index) {
  JsonText object(JsonText::Form::indented, "tensor index: names must be UTF-8");
  object.begin_object().key("metadata").begin_object().member("total_size", index.total_size.count()).end_object();
  std::string text = object.member("weight_map", index.files).end_object().take() + "\n";
  if (text.size() > tensor_index_limit.count()) {
    throw UsageError(
        fmt::format("tensor index: {} bytes name {} tensors, and no reader takes more than {}: give them "
                    "shorter names",
                    text.size(), index.files.size(), tensor_index_limit.count()));
  }
  return text;
}

void write_tensor_index(const std::filesystem::path& path, const TensorIndex& index) {
  checkpoint::write_new_file(path, compose(index));
}

TensorIndex parse_tensor_index(std::string_view text, const std::filesystem::path& path) {
  TensorIndex index;
  JsonForm metadata = JsonForm::object(
      {{"total_size", JsonForm::whole([&](std::uint64_t bytes) { index.total_size = Bytes(bytes); })}});
  metadata.accepts_unknown = [] { return true; };
  const JsonForm form = JsonForm::object(
      {{"metadata", std::move(metadata)},
       {"weight_map",
        JsonForm::texts([&](const std::string& tensor, std::string_view file) { index.files[tensor] = file; })}});
  checkpoint::parse_json(text, form, path.string());
  return index;
}

}  // namespace tessera
