// Processors other than x86-64 have the portable loops over rows of images alone.
#include "vision/src/rows/image_rows.hpp"

namespace tessera::vision {

const ImageRows& active_image_rows() { return portable_image_rows(); }

}  // namespace tessera::vision
