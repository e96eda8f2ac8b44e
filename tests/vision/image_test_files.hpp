// The tests of images in files share these: a folder of their own, an image of a source, and what an error says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "../checkpoint/temporary_folder.hpp"
#include "../error_text.hpp"
#include "tessera/base/error.hpp"
#include "tessera/vision/images.hpp"

namespace tessera::test {

class Folder : public TemporaryFolder {
 public:
  std::filesystem::path write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((path() / name).parent_path());
    std::ofstream(path() / name, std::ios::binary) << content;
    return path() / name;
  }
};

struct Image {
  std::vector<std::uint8_t> pixels;
  std::int32_t label;
};
inline Image image_of(const vision::ImageSource& source, std::size_t index) {
  Image image{std::vector<std::uint8_t>(source.extents().elements()), -1};
  source.read_image(index, image.pixels, image.label);
  return image;
}

// Returns the text of the call's DataError; "none" where there was none.
inline std::string failure_of(const std::function<void()>& call) { return tests::error_text<DataError>(call, "none"); }

}  // namespace tessera::test
