// The manifest's last member is the CRC32C of all bytes before it, so its place is known without parsing anything.
#include "tessera/checkpoint/manifest.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <span>

#include "checkpoint/checksum.hpp"
#include "checkpoint/file.hpp"
#include "checkpoint/json_form.hpp"
#include "checkpoint/safetensors_header.hpp"
#include "tessera/base/error.hpp"

namespace tessera {

namespace {

using checkpoint::JsonForm;
using checkpoint::JsonRefusal;

constexpr std::string_view format_name = "tessera-checkpoint";
constexpr std::string_view seal_begin = "\"manifest_crc32c\": \"";
constexpr std::string_view seal_end = "\"\n}\n";
constexpr std::size_t seal_size = seal_begin.size() + 8 + seal_end.size();
constexpr std::size_t longest_name = 255;

std::string seal_of(std::string_view body) {
  const std::uint32_t checksum = checkpoint::crc32c(std::as_bytes(std::span(body)));
  return fmt::format("{}{}{}", seal_begin, checkpoint::to_hexadecimal(checksum), seal_end);
}

bool is_file_name(std::string_view name) {
  const auto allowed = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
  };
  return !name.empty() && name.size() <= longest_name && name.front() != '.' && name != manifest_name &&
         std::all_of(name.begin(), name.end(), allowed);
}

// Says what is wrong with the last file, given those before it; empty when nothing is.
std::string fault_of(std::span<const ManifestFile> files) {
  const ManifestFile& file = files.back();
  const std::string shown = checkpoint::shown_name(file.name);
  if (!is_file_name(file.name)) return fmt::format("{} is no name for a file of a checkpoint", shown);
  if (files.size() > 1) {
    const std::string& before = files[files.size() - 2].name;
    if (before == file.name) return fmt::format("file {} is given twice", shown);
    if (before > file.name) return fmt::format("file {} must stand before \"{}\"", shown, before);
  }
  if (file.size.count() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max())) {
    return fmt::format("file {} cannot have {} bytes", shown, file.size.count());
  }
  if (file.blocks.size() != block_count(file.size)) {
    return fmt::format("file {} of {} bytes has {} blocks, not {}", shown, file.size.count(), block_count(file.size),
                       file.blocks.size());
  }
  return {};
}

void append_file(std::string& text, const ManifestFile& file) {
  text += fmt::format("  {{\"name\": \"{}\", \"bytes\": {}, \"crc32c\": [", file.name, file.size.count());
  for (std::size_t i = 0; i < file.blocks.size(); ++i) {
    text += fmt::format("{}\"{}\"", i == 0 ? "" : ", ", checkpoint::to_hexadecimal(file.blocks[i]));
  }
  text += "]}";
}

void check_seal(std::string_view text, const std::string& path) {
  if (text.size() < seal_size || !text.ends_with(seal_end) ||
      !text.substr(text.size() - seal_size).starts_with(seal_begin)) {
    throw DataError(fmt::format("{}: does not end as a manifest does: cut off, or not a manifest", path));
  }
  if (!text.ends_with(seal_of(text.substr(0, text.size() - seal_size)))) {
    throw DataError(fmt::format("{}: is damaged: its own checksum does not match", path));
  }
}

void check_version(std::uint64_t version) {
  if (version == checkpoint_format_version) return;
  if (version == 0) throw JsonRefusal{"there is no version 0"};
  throw JsonRefusal{fmt::format(
      "the checkpoint is of format {}, written by a newer version of Tessera; this one reads up to {}: read "
      "it with that version or a later one",
      version, checkpoint_format_version)};
}

void check_block_size(std::uint64_t bytes) {
  if (bytes != checkpoint_block.count()) {
    throw JsonRefusal{fmt::format("blocks of {} bytes; this format's have {}", bytes, checkpoint_block.count())};
  }
}

std::uint32_t parse_checksum(std::string_view text) {
  const auto checksum = checkpoint::from_hexadecimal<std::uint32_t>(text);
  if (!checksum) throw JsonRefusal{"expected eight hexadecimal digits, found " + checkpoint::shown_name(text)};
  return *checksum;
}

JsonForm file_form(Manifest& manifest) {
  JsonForm form = JsonForm::object(
      {{"name", JsonForm::text([&](std::string_view name) { manifest.files.back().name = name; })},
       {"bytes", JsonForm::whole([&](std::uint64_t bytes) { manifest.files.back().size = Bytes(bytes); })},
       {"crc32c", JsonForm::list(JsonForm::text(
                      [&](std::string_view text) { manifest.files.back().blocks.push_back(parse_checksum(text)); }))}});
  form.begin = [&] { manifest.files.emplace_back(); };
  form.end = [&] {
    const std::string fault = fault_of(manifest.files);
    if (!fault.empty()) throw JsonRefusal{fault};
  };
  return form;
}

JsonForm manifest_form(Manifest& manifest) {
  return JsonForm::object({{"format", JsonForm::text([](std::string_view name) {
                              if (name != format_name) throw JsonRefusal{"is not that of a checkpoint"};
                            })},
                           {"version", JsonForm::whole(check_version)},
                           {"step", JsonForm::whole([&](std::uint64_t step) { manifest.step = step; })},
                           {"block_bytes", JsonForm::whole(check_block_size)},
                           {"files", JsonForm::list(file_form(manifest))},
                           {"manifest_crc32c", JsonForm::text(parse_checksum)}});
}

}  // namespace

std::uint64_t block_count(Bytes file_size) {
  return file_size.count() / checkpoint_block.count() + (file_size.count() % checkpoint_block.count() != 0 ? 1 : 0);
}

Bytes longest_manifest(std::size_t files, std::uint64_t blocks) {
  constexpr std::uint64_t around = 256, of_file = longest_name + 64, of_block = 12;  // as append_file() writes them
  return Bytes(around + of_file * files + of_block * blocks);
}

std::string compose(const Manifest& manifest) {
  for (std::size_t i = 0; i < manifest.files.size(); ++i) {
    const std::string fault = fault_of(std::span(manifest.files).first(i + 1));
    if (!fault.empty()) throw UsageError("manifest: " + fault);
  }
  std::string text =
      fmt::format("{{\n\"format\": \"{}\",\n\"version\": {},\n\"step\": {},\n\"block_bytes\": {},\n\"files\": [",
                  format_name, checkpoint_format_version, manifest.step, checkpoint_block.count());
  for (const ManifestFile& file : manifest.files) {
    text += &file == &manifest.files.front() ? "\n" : ",\n";
    append_file(text, file);
  }
  text += "\n],\n";
  text += seal_of(text);
  if (text.size() > manifest_limit.count()) {
    throw UsageError(
        fmt::format("manifest: {} bytes, and no reader takes more than {}", text.size(), manifest_limit.count()));
  }
  return text;
}

Manifest parse_manifest(std::string_view text, const std::filesystem::path& path) {
  check_seal(text, path.string());
  Manifest manifest;
  const JsonForm form = manifest_form(manifest);
  checkpoint::parse_json(text, form, path.string());
  return manifest;
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / manifest_name;
  return parse_manifest(checkpoint::read_whole(path, manifest_limit), path);
}

}  // namespace tessera
