// A file that is there for one test, and what a reader of it says.
#pragma once

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "../checkpoint/temporary_folder.hpp"
#include "../error_text.hpp"
#include "tessera/base/error.hpp"

class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content) { std::ofstream(path_, std::ios::binary) << content; }
  const std::filesystem::path& path() const { return path_; }

 private:
  TemporaryFolder folder_;
  std::filesystem::path path_ = folder_ / "file";
};

// Returns what read(path) says of a file of such content, without the path that it begins with.
template <typename Read>
std::string complaint(const std::string& content, Read read) {
  const TemporaryFile file(content);
  const std::string path = file.path().string();
  const std::string message = tests::error_text<tessera::DataError>([&] { read(file.path()); }, path + "accepted");
  REQUIRE(message.starts_with(path));
  return message.substr(path.size());
}
