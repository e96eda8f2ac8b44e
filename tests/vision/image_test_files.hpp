// The tests of images in files share these: a folder of their own, and what an error says.
#pragma once

#include <fmt/format.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "../error_text.hpp"
#include "tessera/base/error.hpp"

namespace tessera::test {

// Empty at first, and gone in the end.
class Folder {
 public:
  Folder() : path_(std::filesystem::temp_directory_path() / fmt::format("tessera-images-{}", ::getpid())) {
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::filesystem::path write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << content;
    return path_ / name;
  }
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// Returns the text of the call's DataError; "none" where there was none.
inline std::string failure_of(const std::function<void()>& call) { return tests::error_text<DataError>(call, "none"); }

}  // namespace tessera::test
