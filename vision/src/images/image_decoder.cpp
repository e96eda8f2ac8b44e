// Both libraries report errors by leaving their calls (libjpeg by longjmp), so what they are called from keeps no
// objects that would have to be destroyed.
#include "vision/src/images/image_decoder.hpp"

#include <fmt/format.h>
#include <png.h>

#include <csetjmp>
#include <cstdio>  // before jpeglib.h, which needs FILE
// clang-format off
#include <jpeglib.h>
#include <jerror.h>
// clang-format on
#include <algorithm>
#include <cstring>

#include "vision/src/images/image_files.hpp"

namespace tessera::vision {

namespace {

// Where a picture goes, and what is said of it.
struct Target {
  Picture& picture;
  const std::string& path;
  std::size_t most;
};

void resize(const Target& to, std::size_t height, std::size_t width) {
  if (height == 0 || width == 0) refuse_file(to.path, "is an image without pixels");
  if (height > to.most / width) {
    refuse_file(to.path, fmt::format("has {} x {} pixels: more than {} are refused", height, width, to.most));
  }
  to.picture.height = height;
  to.picture.width = width;
  to.picture.pixels.resize(3 * height * width);
}

// ---- JPEG ----

struct JpegErrors {
  jpeg_error_mgr base;  // first: libjpeg knows this part
  std::jmp_buf back;
  char words[JMSG_LENGTH_MAX];
};

[[noreturn]] void leave(j_common_ptr info) {
  auto* const errors = reinterpret_cast<JpegErrors*>(info->err);
  errors->base.format_message(info, errors->words);
  std::longjmp(errors->back, 1);
}

// libjpeg fills what is missing at the end with grey, makes some picture of bytes that are no code, and only warns. Its
// other warnings are about what sound files have, too: bytes that belong to nothing, say.
void hear(j_common_ptr info, int level) {
  if (level >= 0) return;
  switch (info->err->msg_code) {
    case JWRN_JPEG_EOF:
    case JWRN_HIT_MARKER:
    case JWRN_HUFF_BAD_CODE:
    case JWRN_ARITH_BAD_CODE:
    case JWRN_MUST_RESYNC: leave(info);
    default: return;
  }
}

class Jpeg {
 public:
  Jpeg() {
    info_.err = jpeg_std_error(&errors_.base);
    errors_.base.error_exit = leave;
    errors_.base.emit_message = hear;
    jpeg_create_decompress(&info_);
  }
  Jpeg(const Jpeg&) = delete;
  Jpeg& operator=(const Jpeg&) = delete;
  ~Jpeg() { jpeg_destroy_decompress(&info_); }

  // The size of the image; false: words() says why not.
  bool begin(const std::uint8_t* content, std::size_t size) {
    if (setjmp(errors_.back) != 0) return false;  // NOLINT(cert-err52-cpp): libjpeg's way
    jpeg_mem_src(&info_, content, size);
    jpeg_read_header(&info_, TRUE);
    const bool four = info_.jpeg_color_space == JCS_CMYK || info_.jpeg_color_space == JCS_YCCK;
    info_.out_color_space = four ? JCS_CMYK : JCS_RGB;
    return true;
  }
  std::size_t height() const { return info_.image_height; }
  std::size_t width() const { return info_.image_width; }
  bool has_four_inks() const { return info_.out_color_space == JCS_CMYK; }

  // Lines of three or four bytes a pixel, which `line` has room for, become lines of `pixels`.
  bool read(std::uint8_t* line, std::uint8_t* pixels) {
    if (setjmp(errors_.back) != 0) return false;  // NOLINT(cert-err52-cpp)
    jpeg_start_decompress(&info_);
    while (info_.output_scanline < info_.output_height) {
      std::uint8_t* const to = pixels + 3 * std::size_t{info_.output_scanline} * info_.output_width;
      JSAMPROW row = has_four_inks() ? line : to;
      jpeg_read_scanlines(&info_, &row, 1);
      if (has_four_inks()) mix(line, to);
    }
    jpeg_finish_decompress(&info_);
    return true;
  }
  const char* words() const { return errors_.words; }

 private:
  // Adobe's programs write such files inverted: 255 is no ink.
  void mix(const std::uint8_t* inks, std::uint8_t* to) const {
    for (std::size_t x = 0; x < info_.output_width; ++x) {
      for (std::size_t c = 0; c < 3; ++c) {
        const unsigned product = unsigned{inks[4 * x + c]} * inks[4 * x + 3];
        to[3 * x + c] = static_cast<std::uint8_t>((product + 127) / 255);
      }
    }
  }

  jpeg_decompress_struct info_ = {};
  JpegErrors errors_ = {};
};

void decode_jpeg(std::span<const std::uint8_t> content, const Target& to) {
  Jpeg jpeg;
  if (!jpeg.begin(content.data(), content.size()))
    refuse_file(to.path, fmt::format("is no whole JPEG: {}", jpeg.words()));
  resize(to, jpeg.height(), jpeg.width());
  std::vector<std::uint8_t> line(jpeg.has_four_inks() ? 4 * jpeg.width() : 0);
  if (!jpeg.read(line.data(), to.picture.pixels.data())) {
    refuse_file(to.path, fmt::format("is a damaged JPEG: {}", jpeg.words()));
  }
}

// ---- PNG ----

void decode_png(std::span<const std::uint8_t> content, const Target& to) {
  png_image image;
  std::memset(&image, 0, sizeof image);
  image.version = PNG_IMAGE_VERSION;
  const auto fail = [&](const char* what) {
    const std::string words = image.message;
    png_image_free(&image);
    refuse_file(to.path, fmt::format("is {} PNG: {}", what, words));
  };
  if (png_image_begin_read_from_memory(&image, content.data(), content.size()) == 0) fail("no whole");
  try {
    resize(to, image.height, image.width);
  } catch (...) {
    png_image_free(&image);
    throw;
  }
  image.format = PNG_FORMAT_RGB;
  const png_color black{0, 0, 0};
  if (png_image_finish_read(&image, &black, to.picture.pixels.data(), 0, nullptr) == 0) fail("a damaged");
  png_image_free(&image);
}

bool begins_with(std::span<const std::uint8_t> content, std::initializer_list<std::uint8_t> bytes) {
  return content.size() >= bytes.size() && std::equal(bytes.begin(), bytes.end(), content.begin());
}

}  // namespace

void require_decoder() {}

void decode(std::span<const std::uint8_t> content, const std::string& path, Picture& picture, std::size_t most) {
  const Target to{picture, path, most};
  if (begins_with(content, {0xff, 0xd8, 0xff})) return decode_jpeg(content, to);
  if (begins_with(content, {0x89, 'P', 'N', 'G'})) return decode_png(content, to);
  refuse_file(path, content.empty() ? "is empty" : "is neither a JPEG nor a PNG file");
}

}  // namespace tessera::vision
